#include "engine/comm/host_exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/units.h"
#include "engine/comm/checks.h"
#include "engine/comm/forwarding.h"
#include "engine/mesh/shard.h"

namespace dstrain::comm {
namespace {

/// Up to so many bytes each rank of several sums all of, so that they meet once.
constexpr std::int64_t kSmall = 64 << 10;

enum class Collective : std::uint64_t { all_reduce = 1, all_gather, reduce_scatter };

/// The order in which Gloo's ring sums elements of a tensor (gloo/allreduce.cc): it is cut into
/// segments of 1 MiB at most, two for each rank at least and as many for each. Those of a rank go
/// around the ring from the rank before it downwards, and come to itself last.
class RingOrder {
 public:
  RingOrder(const at::Tensor& whole, int ranks) : ranks_(ranks) {
    constexpr std::int64_t kSegment = 1 << 20;
    const auto width = static_cast<std::int64_t>(whole.element_size());
    const std::int64_t bytes = whole.numel() * width;
    const std::int64_t each =
        ceil_div(std::max(ceil_div(bytes, kSegment), std::int64_t{2} * ranks), ranks);
    each_ = each * ceil_div(ceil_div(bytes, each * ranks), width);
  }
  /// The rank whose segments have element i, and where they end.
  [[nodiscard]] std::pair<int, std::int64_t> owner(std::int64_t i) const {
    const auto rank = static_cast<int>(i / each_);
    return {rank, (rank + 1) * each_};
  }
  /// The rank whose element is the n-th of the sum, from 0.
  [[nodiscard]] int rank(int owner, int n) const { return (owner - 1 - n + 2 * ranks_) % ranks_; }

 private:
  int ranks_;
  std::int64_t each_ = 1;  ///< elements of a rank's segments
};

class HostExchange final : public Forwarding {
 public:
  HostExchange(std::unique_ptr<Communicator> gloo, std::unique_ptr<SharedMemory> memory,
               const Group& group)
      : Forwarding(*gloo), owned_(std::move(gloo)), memory_(std::move(memory)), group_(group) {}

  void all_reduce(at::Tensor& x, ReduceOp op) override {
    check_tensor("all_reduce", x);
    if (op != ReduceOp::sum) return inner_.all_reduce(x, op);
    run("all_reduce", [&] {
      const at::Tensor all = x.view({-1});
      const RingOrder order(x, group_.size);
      const bool alone = group_.size == 2 || static_cast<std::int64_t>(x.nbytes()) <= kSmall;
      in_pieces(x.numel(), slot_elements(x), [&](Range piece) {
        write(all, piece, 0);
        meet(Collective::all_reduce, x);
        if (alone) return sum(order, all, piece, piece, 0);
        const auto part = [&](int rank) {
          const Range own = even_part(piece.size(), group_.size, rank);
          return Range{piece.begin + own.begin, piece.begin + own.end};
        };
        const Range own = part(group_.rank);
        sum(order, all, own, own, own.begin - piece.begin);
        write(all, own, own.begin - piece.begin);
        meet(Collective::all_reduce, x);
        for (int rank = 0; rank < group_.size; ++rank) {
          const Range theirs = part(rank);
          if (rank != group_.rank) read(rank, theirs.begin - piece.begin, all, theirs);
        }
      });
    });
  }

  void all_gather(at::Tensor& output, const at::Tensor& input) override {
    check_parts("all_gather", output, input, group_.size);
    run("all_gather", [&] {
      const std::int64_t count = input.numel();
      const at::Tensor from = input.view({-1}), to = output.view({-1});
      in_pieces(count, slot_elements(input), [&](Range piece) {
        write(from, piece, 0);
        meet(Collective::all_gather, input);
        for (int rank = 0; rank < group_.size; ++rank)
          read(rank, 0, to, {rank * count + piece.begin, rank * count + piece.end});
      });
    });
  }

  void reduce_scatter(at::Tensor& output, const at::Tensor& input) override {
    check_parts("reduce_scatter", input, output, group_.size);
    run("reduce_scatter", [&] {
      const std::int64_t count = output.numel();
      const at::Tensor from = input.view({-1}), to = output.view({-1});
      const RingOrder order(input, group_.size);
      in_pieces(count, slot_elements(input) / group_.size, [&](Range piece) {
        for (int rank = 0; rank < group_.size; ++rank)
          write(from, {rank * count + piece.begin, rank * count + piece.end}, rank * piece.size());
        meet(Collective::reduce_scatter, input);
        const std::int64_t first = group_.rank * count;
        sum(order, to, piece, {first + piece.begin, first + piece.end}, group_.rank * piece.size());
      });
    });
  }

  void all_gather(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    Communicator::all_gather(output, input, meanwhile);
  }
  void reduce_scatter(at::Tensor& output, const at::Tensor& input, const Work& meanwhile) override {
    Communicator::reduce_scatter(output, input, meanwhile);
  }

 private:
  template <class Call>
  void run(std::string_view operation, Call&& call) {
    if (!memory_) group_.fail(operation, "an earlier call of the group has failed");
    const c10::NoGradGuard no_grad;
    try {
      call();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      memory_.reset();
      group_.fail(operation, error.what());
    }
  }

  [[nodiscard]] static std::int64_t slot_elements(const at::Tensor& x) {
    return static_cast<std::int64_t>(SharedMemory::kSlot) /
           static_cast<std::int64_t>(x.element_size());
  }

  /// Each in slots of its own.
  template <class Piece>
  void in_pieces(std::int64_t count, std::int64_t max, Piece&& piece) {
    for (std::int64_t begin = 0; begin < count; begin += max) {
      piece(Range{begin, std::min(count, begin + max)});
      memory_->turn();
    }
  }

  void meet(Collective operation, const at::Tensor& x) {
    memory_->meet(static_cast<std::uint64_t>(operation) << 56 |
                  static_cast<std::uint64_t>(x.scalar_type()) << 48 |
                  static_cast<std::uint64_t>(x.numel()));
  }

  /// Elements of `x`, to and from those behind `at` of a rank's slot.
  void write(const at::Tensor& x, Range elements, std::int64_t at) const {
    std::memcpy(memory_->slot(group_.rank) + at * x.element_size(), bytes_at(x, elements.begin),
                bytes_of(x, elements));
  }
  void read(int rank, std::int64_t at, const at::Tensor& x, Range elements) const {
    std::memcpy(bytes_at(x, elements.begin), memory_->slot(rank) + at * x.element_size(),
                bytes_of(x, elements));
  }
  [[nodiscard]] static std::byte* bytes_at(const at::Tensor& x, std::int64_t element) {
    return static_cast<std::byte*>(x.data_ptr()) + element * x.element_size();
  }
  [[nodiscard]] static std::size_t bytes_of(const at::Tensor& x, Range elements) {
    return to_index(elements.size() * x.element_size());
  }

  /// Sums what lies behind `at` of all slots into elements `to` of `x`; they are elements `whole`
  /// of what is summed.
  void sum(const RingOrder& order, const at::Tensor& x, Range to, Range whole,
           std::int64_t at) const {
    for (std::int64_t i = whole.begin; i < whole.end;) {
      const auto [owner, owners_end] = order.owner(i);
      const std::int64_t count = std::min(whole.end, owners_end) - i, offset = i - whole.begin;
      const auto term = [&](int n) {
        return at::from_blob(memory_->slot(order.rank(owner, n)) + (at + offset) * x.element_size(),
                             {count}, x.options());
      };
      at::Tensor result = x.narrow(0, to.begin + offset, count);
      at::add_out(result, term(0), term(1));
      for (int n = 2; n < group_.size; ++n) result.add_(term(n));
      i += count;
    }
  }

  std::unique_ptr<Communicator> owned_;
  std::unique_ptr<SharedMemory> memory_;
  Group group_;
};

}  // namespace

std::unique_ptr<Communicator> with_shared_memory(std::unique_ptr<Communicator> gloo,
                                                 std::unique_ptr<SharedMemory> memory,
                                                 const Group& group) {
  return std::make_unique<HostExchange>(std::move(gloo), std::move(memory), group);
}

}  // namespace dstrain::comm
