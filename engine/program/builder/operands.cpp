#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/program/builder/writer.h"

namespace dstrain::builder {
namespace {

/// One action. Views of a part of a group count from the first element that the rank owns.
class Views {
 public:
  Views(const Action& action, const Writer& writer)
      : action_(action), writer_(writer), layout_(writer.layout) {}

  std::vector<Work> list();

 private:
  [[nodiscard]] int group() const { return action_.group; }
  [[nodiscard]] const GroupLayout& kind() const { return layout_.groups[to_index(group())]; }
  [[nodiscard]] const Resting& resting() const { return writer_.resting[to_index(group())]; }
  [[nodiscard]] std::int64_t padded() const { return layout_.flat[to_index(group())].padded(); }
  [[nodiscard]] std::int64_t shard() const { return padded() / layout_.shards(group()); }
  [[nodiscard]] int find(const std::vector<int>& ids, BufferRole role) const {
    return writer_.program.find(ids, role);
  }
  [[nodiscard]] bool several(CommAxis axis) const { return layout_.extent(axis).ranks > 1; }

  /// `elements` from `begin` on of each rank's part.
  [[nodiscard]] View part_along(int buffer, CommAxis axis, std::int64_t stride, std::int64_t begin,
                                std::int64_t elements) const {
    View view{.buffer = buffer, .begin = begin, .elements = elements};
    if (several(axis)) view.share = Share{axis, stride};
    return view;
  }
  /// Own elements of a kind of state of `group`: its buffer holds them alone, or all.
  [[nodiscard]] View own(int group, int buffer, Partition partition, Range range) const {
    if (partition == Partition::sharded || !layout_.gathered(group))
      return {.buffer = buffer, .begin = range.begin, .elements = range.size()};
    return part_along(buffer, layout_.groups[to_index(group)].cut, layout_.own_elements(group),
                      range.begin, range.size());
  }
  [[nodiscard]] View own_gradient(int group, Range range) const {
    return own(group, writer_.resting[to_index(group)].gradient,
               layout_.groups[to_index(group)].gradients, range);
  }
  [[nodiscard]] View own_parameters(Range range) const {
    return own(group(), resting().parameters, kind().parameters, range);
  }
  /// The part of the action.
  [[nodiscard]] Range part() const { return layout_.part(group(), std::max(action_.part, 0)); }

  void add(Work work) { list_.push_back(std::move(work)); }
  void exchange(CommOp op, CommAxis axis, const View& from, const View& to, int width) {
    if (several(axis))
      add(work::Exchange{.op = op, .axis = axis, .from = from, .to = to, .width = width});
  }

  void run();
  [[nodiscard]] View activation(int buffer) const;
  void gather();
  void gather_codes(const View& own, const View& whole, int codes);
  void reduce();
  /// Sums over the shard axis in codes between groups of ranks; into `sum`.
  void reduce_codes(int whole, const View& sum);
  void norm();
  void update();
  void transfer();
  void move_states();
  void move_input();

  /// What of a group's states goes through a slot, and where it rests.
  struct Travelling {
    View rest, in_slot;
  };
  [[nodiscard]] std::vector<Travelling> in_state_slot(int slot) const;
  [[nodiscard]] View in_slot(int slot, Bytes begin, int width) const {
    return {.buffer = slot, .begin = begin, .elements = part().size() * width, .width = width};
  }
  [[nodiscard]] View gradient_in_slot(int slot) const {
    return in_slot(slot, 0, layout_.widths.gradient);
  }
  [[nodiscard]] View parameters_in_slot(int slot) const {
    return in_slot(slot, part().size() * layout_.widths.gradient, layout_.widths.compute);
  }
  [[nodiscard]] View state(int buffer) const {
    return {.buffer = buffer, .begin = part().begin, .elements = part().size()};
  }

  const Action& action_;
  const Writer& writer_;
  const Layout& layout_;
  std::vector<Work> list_;
};

/// Batches, outputs and what blocks keep are counted in bytes.
View Views::activation(int buffer) const {
  using enum BufferRole;
  const Buffer& own = writer_.program.buffers[to_index(buffer)];
  const auto boundary = [&](int block) {
    return writer_.cost.blocks[to_index(block)].boundary_bytes();
  };
  // A slot for inputs has room for the largest.
  const bool slot = own.role == fetched_input;
  return {
      .buffer = buffer,
      .elements = slot ? boundary(action_.block - int{runs_block(action_.kind)}) : own.elements};
}

void Views::run() {
  const work::Pass pass = pass_of(action_.kind).value();
  work::Run run{.block = action_.block,
                .pass = pass,
                .inside = block_collectives(pass, action_.block, writer_.program.kind, layout_,
                                            writer_.cost)};
  std::vector<int> trained;
  for (const int g : writer_.groups_of(action_.block))
    if (layout_.groups[to_index(g)].trainable) trained.push_back(g);
  // Parameters come first, and gradients in the order of the groups.
  const std::size_t parameters =
      pass == work::Pass::weight ? 0 : writer_.groups_of(action_.block).size();
  for (std::size_t i = 0; i < action_.reads.size(); ++i) {
    if (i < parameters) {
      const int g = writer_.groups_of(action_.block)[i];
      run.reads.push_back(
          {.buffer = action_.reads[i], .elements = layout_.flat[to_index(g)].padded()});
    } else {
      run.reads.push_back(activation(action_.reads[i]));
    }
  }
  std::size_t gradients = 0;
  for (const int id : action_.writes) {
    const BufferRole role = writer_.program.buffers[to_index(id)].role;
    if (role == BufferRole::gradient || role == BufferRole::whole_gradient) {
      run.writes.push_back(
          {.buffer = id, .elements = layout_.whole_gradient_elements(trained[gradients++])});
    } else {
      run.writes.push_back(activation(id));
    }
  }
  add(std::move(run));
}

void Views::gather_codes(const View& own, const View& whole, int codes) {
  const Bytes all = layout_.gather_scratch(group()), message = all / layout_.shards(group());
  const View sent = part_along(codes, kind().cut, message, 0, message);
  const View received = {.buffer = codes, .elements = all};
  const CodedGroup coded = layout_.coded(group(), *layout_.gather_format);
  add(work::Code{.from = own, .to = sent, .group = coded, .share = Share{kind().cut, 1}});
  exchange(CommOp::all_gather, kind().cut, sent, received, 1);
  add(work::Code{.from = received, .to = whole, .group = coded, .decode = true});
}

void Views::gather() {
  using enum BufferRole;
  const int compute = layout_.widths.compute;
  const View whole = {.buffer = action_.writes.front(), .elements = padded()};
  if (const int second = find(action_.reads, second_shard); second >= 0) {
    exchange(CommOp::all_gather, CommAxis::shard_inner,
             {.buffer = second, .elements = layout_.second_elements(group())}, whole, compute);
    return;
  }
  const Range all_own = {0, layout_.own_elements(group())};
  // The own part is at rest, or was fetched to its place.
  const bool fetched = layout_.gathered_into_slot(group()) && action_.reads.empty();
  const View own =
      fetched ? part_along(whole.buffer, kind().cut, shard(), 0, shard()) : own_parameters(all_own);
  if (const int codes = find(action_.writes, coded_parameters); codes >= 0) {
    gather_codes(own, whole, codes);
  } else {
    exchange(CommOp::all_gather, kind().cut, own, whole, compute);
  }
  if (const int second = find(action_.writes, second_shard); second >= 0) {
    const std::int64_t kept = layout_.second_elements(group());
    add(work::Move{.from = part_along(whole.buffer, CommAxis::shard_inner, kept, 0, kept),
                   .to = {.buffer = second, .elements = kept}});
  }
}

/// Each node's run of shards is summed inside the own node, and each sum goes to the rank that has
/// that shard.
void Views::reduce_codes(int whole, const View& sum) {
  const int nodes = layout_.extent(CommAxis::shard_outer).ranks;
  const std::int64_t run = padded() / nodes;
  if (nodes == 1) {
    exchange(CommOp::reduce_scatter, CommAxis::shard_inner, {.buffer = whole, .elements = padded()},
             sum, kFloatBytes);
    return;
  }
  const int codes = find(action_.writes, BufferRole::coded_gradient);
  const Bytes half = layout_.reduce_scratch(group()) / 2, message = half / nodes;
  for (int node = 0; node < nodes; ++node) {
    const View part = part_along(whole, CommAxis::shard_inner, shard(), node * run, shard());
    exchange(CommOp::reduce_scatter, CommAxis::shard_inner,
             {.buffer = whole, .begin = node * run, .elements = run}, part, kFloatBytes);
  }
  const CodedGroup coded = layout_.coded(group(), *layout_.reduce_format);
  for (int node = 0; node < nodes; ++node) {
    work::Code code{.from = part_along(whole, CommAxis::shard_inner, shard(), node * run, shard()),
                    .to = {.buffer = codes, .begin = node * message, .elements = message},
                    .group = coded,
                    .shard = node * (coded.shards / nodes)};
    if (several(CommAxis::shard_inner)) code.share = Share{CommAxis::shard_inner, 1};
    add(code);
  }
  const View received = {.buffer = codes, .begin = half, .elements = half};
  exchange(CommOp::all_to_all, CommAxis::shard_outer, {.buffer = codes, .elements = half}, received,
           1);
  add(work::Code{.from = received,
                 .to = sum,
                 .group = coded,
                 .share = Share{kind().cut, 1},
                 .decode = true,
                 .sum = true});
}

void Views::reduce() {
  using enum BufferRole;
  const bool from_slot = !action_.reads.empty(), codes = layout_.reduces_codes(group());
  const int whole = from_slot ? action_.reads.front() : resting().gradient;
  const int narrow = find(action_.writes, wire), apart = find(action_.writes, shard_sum);
  const View own = own_gradient(group(), {0, layout_.own_elements(group())});
  const int width = codes ? kFloatBytes : layout_.widths.reduce_wire;
  View part = {.buffer = whole, .elements = padded()};
  if (layout_.splits_sum(group())) {
    const std::int64_t sum = layout_.summed_elements(group());
    exchange(CommOp::reduce_scatter, kind().copies, part,
             part_along(whole, kind().copies, sum, 0, sum), width);
    return;
  }
  if (narrow >= 0) {
    const View sent = {.buffer = narrow, .elements = padded()};
    add(work::Move{.from = part, .to = sent});
    part = sent;
  }
  // A sum that is added to another one is made apart from it.
  const View own_sum = apart >= 0 ? View{.buffer = apart, .elements = own.elements} : own;
  if (codes) {
    reduce_codes(whole, own_sum);
    part = own_sum;
  } else if (several(kind().cut)) {
    const View sum = narrow >= 0 ? part_along(narrow, kind().cut, shard(), 0, shard()) : own_sum;
    exchange(CommOp::reduce_scatter, kind().cut, part, sum, width);
    part = sum;
  }
  exchange(CommOp::all_reduce, kind().copies, part, part, width);
  if (kind().stages.size() > 1) exchange(CommOp::all_reduce, CommAxis::ends, part, part, width);
  if (part == own) return;
  add(work::Move{.from = part, .to = own, .add = from_slot && action_.micro_batch > 0});
}

void Views::norm() {
  work::Norm norm{.sums = kNumStepSums, .ranks = layout_.degree(kAllAxes)};
  for (const BlockCost& block : writer_.cost.blocks) norm.sums += block.step_sums;
  for (int g = 0; g < writer_.num_groups(); ++g) {
    const int gradient = writer_.resting[to_index(g)].gradient;
    if (gradient < 0) continue;
    const std::int64_t elements = layout_.summed_elements(g);
    norm.squares.push_back(
        {.gradient =
             layout_.splits_sum(g)
                 ? part_along(gradient, layout_.groups[to_index(g)].copies, elements, 0, elements)
                 : own_gradient(g, {0, elements}),
         .holders = layout_.summing_ranks(g)});
  }
  add(std::move(norm));
}

std::vector<Views::Travelling> Views::in_state_slot(int slot) const {
  std::vector<Travelling> all;
  Bytes begin = 0;
  const auto travels = [&](const View& rest) {
    const int width = writer_.program.buffers[to_index(rest.buffer)].width;
    all.push_back({.rest = rest, .in_slot = in_slot(slot, begin, width)});
    begin += part().size() * width;
  };
  if (kind().state_place != Place::device)
    for (const int id : resting().states) travels(state(id));
  if (kind().parameter_place != Place::device) travels(own_parameters(part()));
  return all;
}

/// What rests elsewhere is updated in the slot.
void Views::update() {
  using enum BufferRole;
  work::Update update{.group = group(),
                      .gradient = own_gradient(group(), part()),
                      .parameters = own_parameters(part()),
                      .inside = update_collectives(group(), layout_)};
  const int slot = find(action_.writes, state_slot);
  const int parks =
      slot >= 0 && find(action_.writes, gradient) >= 0 ? writer_.parked_state(group()) : -1;
  std::optional<work::Move> parked;
  if (slot >= 0) {
    for (const Travelling& one : in_state_slot(slot)) {
      if (one.rest.buffer == resting().parameters)
        update.parameters = one.in_slot;
      else
        update.states.push_back(one.in_slot);
      if (one.rest.buffer == parks) parked = {.from = one.in_slot, .to = update.gradient};
    }
  }
  if (kind().update_method == UpdateMethod::host) {
    const int in = find(action_.reads, gradient_slot), out = find(action_.writes, gradient_slot);
    update.gradient = gradient_in_slot(std::max(in, out));
    if (out >= 0) update.parameters = parameters_in_slot(out);
  }
  if (slot < 0 || kind().state_place == Place::device) {
    for (const int id : resting().states) {
      const Buffer& rests = writer_.program.buffers[to_index(id)];
      // Moments of matrices and of vectors have widths of their own, and are one buffer.
      const bool bytes = rests.role == moments && rests.moment < 0;
      update.states.push_back(bytes ? View{.buffer = id, .elements = rests.elements} : state(id));
    }
  }
  if (resting().average >= 0) update.states.push_back(state(resting().average));
  add(std::move(update));
  if (parked) add(*parked);
}

/// Fetches and evictions of a part, and of the parameters that a gather needs.
void Views::move_states() {
  using enum BufferRole;
  if (action_.kind == ActionKind::fetch_parameters) {
    const int slot = action_.writes.front();
    const std::int64_t count = layout_.own_elements(group());
    add(work::Move{.from = own_parameters({0, count}),
                   .to = layout_.gathered(group())
                             ? part_along(slot, kind().cut, shard(), 0, shard())
                             : View{.buffer = slot, .elements = count}});
    return;
  }
  const bool fetch = action_.kind == ActionKind::fetch_states;
  if (kind().update_method == UpdateMethod::host) {
    const int slot = find(fetch ? action_.reads : action_.writes, gradient_slot);
    if (fetch) {
      add(work::Move{.from = parameters_in_slot(slot), .to = own_parameters(part())});
      return;
    }
    add(work::Move{.from = own_gradient(group(), part()), .to = gradient_in_slot(slot)});
    if (layout_.widths.parameters_are_states() && kind().parameter_place == Place::device)
      add(work::Move{.from = own_parameters(part()), .to = parameters_in_slot(slot)});
    return;
  }
  const int slot = find(fetch ? action_.writes : action_.reads, state_slot);
  if (slot < 0) {
    add(work::Move{.from = own_gradient(group(), part()), .to = state(action_.writes.front())});
    return;
  }
  // Parameters that are no states only leave, and a parked state stays.
  const std::vector<int>& moved = fetch ? action_.reads : action_.writes;
  for (const Travelling& one : in_state_slot(slot)) {
    if (std::ranges::find(moved, one.rest.buffer) == moved.end()) continue;
    if (fetch)
      add(work::Move{.from = one.rest, .to = one.in_slot});
    else
      add(work::Move{.from = one.in_slot, .to = one.rest});
  }
}

void Views::move_input() {
  add(work::Move{.from = activation(action_.reads.front()),
                 .to = activation(action_.writes.front())});
}

void Views::transfer() {
  const bool sends = action_.kind == ActionKind::send;
  const bool to_next = action_.lane == Lane::send_down || action_.lane == Lane::receive_up;
  const int ranks = layout_.pipeline_degree();
  work::Exchange exchange{.op = sends ? CommOp::send : CommOp::receive,
                          .axis = Axis::pipeline,
                          .width = layout_.widths.compute,
                          .peer = (writer_.program.coordinate + (to_next ? 1 : ranks - 1)) % ranks};
  (sends ? exchange.from : exchange.to) =
      activation(sends ? action_.reads.front() : action_.writes.front());
  add(exchange);
}

std::vector<Work> Views::list() {
  using enum ActionKind;
  switch (action_.kind) {
    case load:
      add(work::Load{activation(action_.writes.front())});
      break;
    case release:
    case discard:
      break;
    case clear:
      add(work::Zero{{.buffer = action_.writes.front(),
                      .elements = layout_.whole_gradient_elements(group())}});
      break;
    case forward:
    case recompute:
    case backward:
    case backward_input:
    case backward_weight:
      run();
      break;
    case gather:
      this->gather();
      break;
    case reduce:
      this->reduce();
      break;
    case gather_sum: {
      const std::int64_t sum = layout_.summed_elements(group());
      exchange(CommOp::all_gather, kind().copies,
               part_along(resting().gradient, kind().copies, sum, 0, sum),
               {.buffer = resting().gradient, .elements = padded()}, layout_.widths.reduce_wire);
      break;
    }
    case norm:
      this->norm();
      break;
    case update:
      this->update();
      break;
    case fetch_parameters:
    case fetch_states:
    case evict_states:
      move_states();
      break;
    case fetch_input:
    case evict_input:
      move_input();
      break;
    case send:
    case receive:
      transfer();
      break;
  }
  return std::move(list_);
}

}  // namespace

void Writer::write_work(Action& action) const {
  action.work = Views(action, *this).list();
  action.comm = operands_of(action.work, action.frees, program.buffers).comm;
}

}  // namespace dstrain::builder
