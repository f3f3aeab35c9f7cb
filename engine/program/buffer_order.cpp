#include "engine/program/buffer_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/base/index.h"

namespace dstrain {
namespace {

/// Reads the runs once in order and notes who used what last.
class BufferOrder {
 public:
  BufferOrder(const Program& program, const Layout& layout, const ModelCost& cost,
              const LaneOrder& order, std::vector<std::string>& problems)
      : program_(program),
        layout_(layout),
        cost_(cost),
        order_(order),
        problems_(problems),
        batches_(program.batches()),
        uses_(program.buffers.size()) {}
  void run();

 private:
  struct Use {
    View view;
    bool changes = false;
    /// The own share of an all-gather in its place, which stays as it is.
    std::optional<View> except = {};
    int action = -1;  ///< number in all runs
    int adds = -1;    ///< the block whose backward adds to a gradient
  };
  [[nodiscard]] int count() const { return static_cast<int>(program_.actions.size()); }
  [[nodiscard]] const Action& action(int i) const {
    return program_.actions[to_index(i % count())];
  }
  [[nodiscard]] std::string name(int i) const {
    return fmt::format("#{} {}{}", i % count(), describe(action(i), cost_),
                       i < count() ? "" : fmt::format(", run {}", i / count() + 1));
  }
  [[nodiscard]] std::int64_t end_of(const View& view) const;
  /// They have elements in common; the second has all of the first's.
  [[nodiscard]] bool touch(const View& a, const View& b) const;
  [[nodiscard]] bool within(const View& a, const View& b) const;
  [[nodiscard]] bool touch(const Use& a, const Use& b) const;
  [[nodiscard]] bool within(const Use& a, const Use& b) const;
  /// Blocks add to tensors of their own in one gradient, so that neither waits for the other.
  [[nodiscard]] bool apart(const Use& a, const Use& b) const {
    return a.adds >= 0 && b.adds >= 0 && a.adds != b.adds;
  }
  void use(Use own);
  /// Adds what a piece of work uses.
  void add_uses(int i, const Work& work, std::vector<Use>& uses) const;
  /// Many views of a buffer become one that has all between them, too.
  [[nodiscard]] std::vector<Use> joined(std::vector<Use> uses) const;
  void free(int i, int id);
  void tell(int i);
  /// The buffer that stands for `id` in the run of action `i`.
  [[nodiscard]] int in_turn(int i, int id) const;

  const Program& program_;
  const Layout& layout_;
  const ModelCost& cost_;
  const LaneOrder& order_;
  std::vector<std::string>& problems_;
  const std::vector<int> batches_;
  std::vector<std::vector<Use>> uses_;  ///< by buffer; those that later ones may have to wait for
  std::set<int> missing_;               ///< actions that the one at hand has to wait for
};

std::int64_t BufferOrder::end_of(const View& view) const {
  const int ranks = view.share ? layout_.extent(view.share->axis).ranks : 1;
  return view.begin + std::max<std::int64_t>(view.elements, 1) +
         (view.share ? (ranks - 1) * view.share->stride : 0);
}

bool BufferOrder::touch(const View& a, const View& b) const {
  // Shares that lie alike lie apart where they begin apart.
  const bool alike = a.share && a.share == b.share;
  return a.begin < (alike ? b.begin + b.elements : end_of(b)) &&
         b.begin < (alike ? a.begin + a.elements : end_of(a));
}

bool BufferOrder::within(const View& a, const View& b) const {
  if (a.share == b.share) return a.begin >= b.begin && a.begin + a.elements <= b.begin + b.elements;
  return !b.share && a.begin >= b.begin && end_of(a) <= end_of(b);
}

bool BufferOrder::touch(const Use& a, const Use& b) const {
  return touch(a.view, b.view) && !(a.except && within(b.view, *a.except)) &&
         !(b.except && within(a.view, *b.except));
}

bool BufferOrder::within(const Use& a, const Use& b) const {
  return within(a.view, b.view) && (!b.except || !touch(a.view, *b.except));
}

int BufferOrder::in_turn(int i, int id) const {
  const auto found = std::ranges::find(batches_, id);
  if (found == batches_.end()) return id;
  const auto place = static_cast<int>(found - batches_.begin());
  return batches_[to_index((place + i / count() * program_.micro_batches) %
                           static_cast<int>(batches_.size()))];
}

void BufferOrder::use(Use own) {
  std::vector<Use>& uses = uses_[to_index(own.view.buffer)];
  for (const Use& other : uses) {
    if (other.action == own.action || !(other.changes || own.changes) || !touch(other, own) ||
        apart(other, own))
      continue;
    if (!order_.before(other.action, own.action)) missing_.insert(other.action);
  }
  // What waits for this one waits for those as well.
  std::erase_if(uses, [&](const Use& other) {
    const bool again = other.changes == own.changes && other.view == own.view &&
                       other.except == own.except &&
                       action(other.action).lane == action(own.action).lane;
    return again || (own.changes && within(other, own) && !apart(other, own));
  });
  uses.push_back(std::move(own));
}

void BufferOrder::add_uses(int i, const Work& work, std::vector<Use>& uses) const {
  const auto turned = [&](View view) {
    view.buffer = in_turn(i, view.buffer);
    return view;
  };
  for (const View& view : views_read(work)) uses.push_back({.view = turned(view), .action = i});
  for (const View& view : views_written(work)) {
    Use own{.view = turned(view), .changes = true, .action = i};
    const auto* exchange = std::get_if<work::Exchange>(&work);
    if (exchange != nullptr && exchange->op == CommOp::all_gather &&
        exchange->from.buffer == exchange->to.buffer)
      own.except = exchange->from;
    const auto* run = std::get_if<work::Run>(&work);
    const Buffer& buffer = program_.buffers[to_index(view.buffer)];
    if (run != nullptr && buffer.role == BufferRole::gradient &&
        cost_.groups[to_index(buffer.owner)].of_one_reader)
      own.adds = run->block;
    uses.push_back(std::move(own));
  }
}

std::vector<BufferOrder::Use> BufferOrder::joined(std::vector<Use> uses) const {
  // A reduction in codes has some for each node, whose number squared is the time of this check.
  constexpr int kMany = 64;
  std::map<int, int> counts;
  for (const Use& own : uses) ++counts[own.view.buffer];
  std::vector<Use> all;
  std::map<std::pair<int, bool>, Use> whole;
  for (const Use& own : uses) {
    if (counts[own.view.buffer] <= kMany) {
      all.push_back(own);
      continue;
    }
    const std::int64_t begin = own.view.begin, end = end_of(own.view);
    const auto [at, is_new] = whole.try_emplace({own.view.buffer, own.changes}, own);
    View& view = at->second.view;
    const std::int64_t first = is_new ? begin : std::min(view.begin, begin);
    const std::int64_t last = is_new ? end : std::max(view.begin + view.elements, end);
    at->second.except.reset();
    view = {.buffer = own.view.buffer, .begin = first, .elements = last - first};
  }
  for (const auto& [place, own] : whole) all.push_back(own);
  return all;
}

void BufferOrder::free(int i, int id) {
  const int buffer = in_turn(i, id);
  use({.view = {.buffer = buffer, .elements = program_.buffers[to_index(buffer)].elements},
       .changes = true,
       .action = i});
}

/// But for waits that others imply.
void BufferOrder::tell(int i) {
  for (const int other : missing_) {
    const bool implied =
        std::ranges::any_of(missing_, [&](int later) { return order_.before(other, later); });
    if (!implied) problems_.push_back(fmt::format("{} does not wait for {}", name(i), name(other)));
  }
  missing_.clear();
}

void BufferOrder::run() {
  for (int i = 0; i < buffer_runs(program_) * count(); ++i) {
    // Later runs repeat what is wrong in this one.
    if (i > 0 && i % count() == 0 && !problems_.empty()) return;
    std::vector<Use> uses;
    for (const Work& work : action(i).work) add_uses(i, work, uses);
    for (Use& own : joined(std::move(uses))) use(std::move(own));
    for (const int id : action(i).frees) free(i, id);
    tell(i);
  }
}

}  // namespace

int buffer_runs(const Program& program) {
  const auto batches = static_cast<int>(program.batches().size());
  return 1 + (batches + program.micro_batches - 1) / program.micro_batches;
}

void check_buffer_order(const Program& program, const Layout& layout, const ModelCost& cost,
                        const LaneOrder& order, std::vector<std::string>& problems) {
  BufferOrder(program, layout, cost, order, problems).run();
}

}  // namespace dstrain
