#include "engine/program/activation_memory.h"
#include "engine/program/simulate.h"

namespace dstrain {
Ledger peak_memory(const Program& program) {
  Ledger ledger;
  for (const Buffer& buffer : program.buffers) {
    using enum BufferRole;
    if (buffer.place != Place::device) {
      const Access access = access_of(buffer.place);
      (access == Access::direct   ? ledger.pinned
       : access == Access::copied ? ledger.pageable
                                  : ledger.file) += buffer.bytes();
      continue;
    }
    switch (buffer.role) {
      case parameters:
        ledger.parameters += buffer.bytes();
        break;
      case gradient:
        ledger.gradients += buffer.bytes();
        break;
      case master:
        ledger.master += buffer.bytes();
        break;
      case moments:
        ledger.moments += buffer.bytes();
        break;
      case average:
        ledger.average += buffer.bytes();
        break;
      case batch:
        ledger.data += buffer.bytes();
        break;
      case gathered:
      case second_shard:
      case coded_parameters:
        ledger.gather_buffers += buffer.bytes();
        break;
      case whole_gradient:
      case shard_sum:
      case wire:
      case coded_gradient:
        ledger.gradient_buffers += buffer.bytes();
        break;
      case block_state:
        ledger.block_states += buffer.bytes();
        break;
      case state_slot:
        if (!buffer.transient) ledger.state_buffers += buffer.bytes();
        break;
      case fetched_input:
        ledger.input_buffers += buffer.bytes();
        break;
      case gradient_slot:
      case host_input:
      case output:
      case saved:
      case output_gradient:
      case held:
        break;
    }
  }
  ledger.activations = peak_activations(program);
  return ledger;
}

}  // namespace dstrain
