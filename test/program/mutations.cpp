#include "test/program/mutations.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "engine/base/index.h"

namespace dstrain::test {
namespace {

constexpr std::array kNames = {"load", "run", "move", "exchange", "code", "norm", "update", "zero"};

/// Axes along which the layout has several ranks.
std::vector<CommAxis> axes_of(const Layout& layout) {
  std::vector<CommAxis> list = {CommAxis::batch, CommAxis::world, CommAxis::shard_inner,
                                CommAxis::shard_outer, CommAxis::ends};
  list.insert(list.end(), kAxes.begin(), kAxes.end());
  std::erase_if(list, [&](CommAxis axis) { return layout.extent(axis).ranks == 1; });
  return list;
}

/// The same ranks under two names.
bool same_ranks(CommAxis a, CommAxis b, const Layout& layout) {
  const CommExtent first = layout.extent(a), second = layout.extent(b);
  return first.ranks == second.ranks && (first.ranks == 1 || first.stride == second.stride) &&
         first.span == second.span;
}

class Mutator {
 public:
  Mutator(const Program& program, const Layout& layout,
          const std::function<void(const Mutation&)>& visit)
      : program_(program), layout_(layout), axes_(axes_of(layout)), visit_(visit) {}

  void run() {
    for (std::size_t i = 0; i < program_.actions.size(); ++i) {
      action_ = static_cast<int>(i);
      const std::vector<Work>& list = program_.actions[i].work;
      for (std::size_t w = 0; w < list.size(); ++w) whole(w);
      for (std::size_t w = 0; w < list.size(); ++w) operands(w);
    }
    sums_along_axes();
  }

 private:
  using Change = std::function<void(std::vector<Work>&)>;

  /// The program with one list of work changed, and all that follows from it.
  void mutate(const char* operation, const std::string& change, const Change& apply) {
    Mutation mutation{operation, change, program_, action_};
    Action& action = mutation.program.actions[to_index(action_)];
    apply(action.work);
    renew(mutation.program, action);
    visit_(mutation);
  }
  static void renew(const Program& program, Action& action) {
    Operands operands = operands_of(action.work, action.frees, program.buffers);
    action.reads = std::move(operands.reads);
    action.writes = std::move(operands.writes);
    action.comm = std::move(operands.comm);
  }
  [[nodiscard]] const Work& at(std::size_t w) const {
    return program_.actions[to_index(action_)].work[w];
  }

  [[nodiscard]] std::int64_t end_of(const View& view) const {
    const int ranks = view.share ? layout_.extent(view.share->axis).ranks : 1;
    return view.begin + view.elements + (view.share ? (ranks - 1) * view.share->stride : 0);
  }
  [[nodiscard]] bool touch(const std::vector<View>& a, const std::vector<View>& b) const {
    return std::ranges::any_of(a, [&](const View& x) {
      return std::ranges::any_of(b, [&](const View& y) {
        if (x.buffer != y.buffer) return false;
        // Shares that lie alike lie apart where they begin apart.
        const bool alike = x.share && x.share == y.share;
        return x.begin < (alike ? y.begin + y.elements : end_of(y)) &&
               y.begin < (alike ? x.begin + x.elements : end_of(x));
      });
    });
  }
  /// Whether the order of two pieces of work matters.
  [[nodiscard]] bool conflict(const Work& a, const Work& b) const {
    return touch(views_written(a), views_written(b)) || touch(views_written(a), views_read(b)) ||
           touch(views_read(a), views_written(b));
  }

  void whole(std::size_t w) {
    const char* name = kNames[at(w).index()];
    const auto place = static_cast<std::ptrdiff_t>(w);
    mutate(name, "left out", [&](auto& list) { list.erase(list.begin() + place); });
    mutate(name, "doubled", [&](auto& list) { list.insert(list.begin() + place, Work(list[w])); });
    const std::vector<Work>& list = program_.actions[to_index(action_)].work;
    if (w + 1 < list.size() && conflict(list[w], list[w + 1]))
      mutate(name, "after the next", [&](auto& work) { std::swap(work[w], work[w + 1]); });
  }

  /// Each view of a piece of work in turn.
  void views(std::size_t w, const std::function<std::vector<View*>(Work&)>& of) {
    Work copy = at(w);
    const std::size_t count = of(copy).size();
    const char* name = kNames[copy.index()];
    for (std::size_t v = 0; v < count; ++v) {
      const auto change = [&](const char* what, const std::function<void(View&)>& apply) {
        mutate(name, what, [&](auto& list) { apply(*of(list[w])[v]); });
      };
      const View view = *of(copy)[v];
      if (view.buffer < 0) continue;
      change("view moved", [](View& own) { own.begin += own.elements; });
      change("view cut", [](View& own) { own.elements /= 2; });
      if (view.share) {
        change("view of no share", [](View& own) { own.share = std::nullopt; });
        change("view of another share", [&](View& own) { own.share->stride *= 2; });
      }
      for (const BufferRole role : {program_.buffers[to_index(view.buffer)].role,
                                    BufferRole::gradient, BufferRole::parameters}) {
        for (const int other : program_.buffers_of(role)) {
          if (other == view.buffer) continue;
          change("view of another buffer", [&](View& own) { own.buffer = other; });
          break;
        }
      }
    }
  }

  template <class W>
  void set(std::size_t w, const std::string& change, const std::function<void(W&)>& apply) {
    mutate(kNames[at(w).index()], change, [&](auto& list) { apply(std::get<W>(list[w])); });
  }

  void operands(std::size_t w) {
    std::visit([&](const auto& own) { vary(w, own); }, at(w));
  }

  void vary(std::size_t w, const work::Load&) {
    views(w, [](Work& one) { return std::vector{&std::get<work::Load>(one).to}; });
  }
  void vary(std::size_t w, const work::Zero&) {
    views(w, [](Work& one) { return std::vector{&std::get<work::Zero>(one).to}; });
  }
  void vary(std::size_t w, const work::Move&) {
    views(w, [](Work& one) {
      auto& own = std::get<work::Move>(one);
      return std::vector{&own.from, &own.to};
    });
    set<work::Move>(w, "adds or not", [](auto& own) { own.add = !own.add; });
    set<work::Move>(w, "turned round", [](auto& own) { std::swap(own.from, own.to); });
  }
  void vary(std::size_t w, const work::Code&) {
    views(w, [](Work& one) {
      auto& own = std::get<work::Code>(one);
      return std::vector{&own.from, &own.to};
    });
    set<work::Code>(w, "back or not", [](auto& own) { own.decode = !own.decode; });
    set<work::Code>(w, "sums or not", [](auto& own) { own.sum = !own.sum; });
    set<work::Code>(w, "another shard", [](auto& own) { ++own.shard; });
    set<work::Code>(w, "one shard of all ranks", [](auto& own) {
      if (own.share)
        own.share.reset();
      else
        own.share = Share{CommAxis::shard_inner, 1};
    });
    set<work::Code>(w, "more codes", [](auto& own) { own.group.quantized -= kCodeBlock; });
    set<work::Code>(w, "another format", [](auto& own) {
      own.group.format = own.group.format == CodeFormat::int8 ? CodeFormat::fp8 : CodeFormat::int8;
    });
  }
  void vary(std::size_t w, const work::Exchange& exchange) {
    views(w, [](Work& one) {
      auto& own = std::get<work::Exchange>(one);
      return std::vector{&own.from, &own.to};
    });
    for (const CommOp op :
         {CommOp::all_gather, CommOp::reduce_scatter, CommOp::all_reduce, CommOp::all_to_all}) {
      const bool transfers = exchange.op == CommOp::send || exchange.op == CommOp::receive;
      if (op == exchange.op || transfers) continue;
      set<work::Exchange>(w, fmt::format("{} instead of {}", comm_name(op), comm_name(exchange.op)),
                          [&](auto& own) { own.op = op; });
    }
    for (const CommAxis axis : axes_) {
      if (axis == exchange.axis || same_ranks(axis, exchange.axis, layout_)) continue;
      set<work::Exchange>(w, "along another axis", [&](auto& own) { own.axis = axis; });
    }
    for (const double scale : {0.5, 2.0, 0.0})
      set<work::Exchange>(w, "scaled", [&](auto& own) { own.scale = scale; });
    set<work::Exchange>(w, "another width", [](auto& own) { own.width *= 2; });
    set<work::Exchange>(w, "another peer", [](auto& own) { own.peer += 1; });
    if (exchange.op == CommOp::all_reduce) return;
    set<work::Exchange>(w, "turned round", [](auto& own) {
      std::swap(own.from, own.to);
      if (own.op == CommOp::send)
        own.op = CommOp::receive;
      else if (own.op == CommOp::receive)
        own.op = CommOp::send;
    });
  }
  void vary(std::size_t w, const work::Norm& norm) {
    for (std::size_t s = 0; s < norm.squares.size(); ++s) {
      views(w,
            [s](Work& one) { return std::vector{&std::get<work::Norm>(one).squares[s].gradient}; });
      const auto place = static_cast<std::ptrdiff_t>(s);
      set<work::Norm>(w, "square left out",
                      [&](auto& own) { own.squares.erase(own.squares.begin() + place); });
      set<work::Norm>(w, "square doubled",
                      [&](auto& own) { own.squares.push_back(own.squares[s]); });
      set<work::Norm>(w, "another number of holders", [&](auto& own) { ++own.squares[s].holders; });
    }
    set<work::Norm>(w, "of fewer numbers", [](auto& own) { --own.sums; });
    set<work::Norm>(w, "of more ranks", [](auto& own) { ++own.ranks; });
  }
  void vary(std::size_t w, const work::Update& update) {
    views(w, [](Work& one) {
      auto& own = std::get<work::Update>(one);
      std::vector<View*> all = {&own.gradient, &own.parameters};
      for (View& state : own.states) all.push_back(&state);
      return all;
    });
    for (std::size_t s = 0; s < update.states.size(); ++s) {
      const auto place = static_cast<std::ptrdiff_t>(s);
      set<work::Update>(w, "state left out",
                        [&](auto& own) { own.states.erase(own.states.begin() + place); });
      set<work::Update>(w, "state doubled",
                        [&](auto& own) { own.states.push_back(own.states[s]); });
    }
    set<work::Update>(w, "of another group", [&](auto& own) {
      own.group = own.group == 0 ? static_cast<int>(layout_.groups.size()) - 1 : own.group - 1;
    });
    set<work::Update>(w, "one more collective", [](auto& own) { own.inside.push_back({}); });
  }
  void vary(std::size_t w, const work::Run& run) {
    views(w, [](Work& one) {
      auto& own = std::get<work::Run>(one);
      std::vector<View*> all;
      for (View& view : own.reads) all.push_back(&view);
      for (View& view : own.writes) all.push_back(&view);
      return all;
    });
    for (std::vector<View> work::Run::*list : {&work::Run::reads, &work::Run::writes}) {
      for (std::size_t v = 0; v < (run.*list).size(); ++v) {
        const auto place = static_cast<std::ptrdiff_t>(v);
        set<work::Run>(w, "view left out",
                       [&](auto& own) { (own.*list).erase((own.*list).begin() + place); });
        set<work::Run>(w, "view doubled",
                       [&](auto& own) { (own.*list).push_back((own.*list)[v]); });
      }
    }
    using enum work::Pass;
    for (const work::Pass pass : {forward, again, backward, input, weight}) {
      if (pass == run.pass) continue;
      set<work::Run>(w, "another pass", [&](auto& own) { own.pass = pass; });
    }
    set<work::Run>(w, "of another block", [](auto& own) { own.block += own.block == 0 ? 1 : -1; });
    set<work::Run>(w, "one more collective", [](auto& own) { own.inside.push_back({}); });
    for (std::size_t c = 0; c < run.inside.size(); ++c) {
      const auto place = static_cast<std::ptrdiff_t>(c);
      set<work::Run>(w, "collective left out",
                     [&](auto& own) { own.inside.erase(own.inside.begin() + place); });
    }
  }

  /// A rule of the builder that is missing: no sum runs along an axis; or all are scaled.
  void sums_along_axes() {
    const auto sums = [](const Work& one) -> const work::Exchange* {
      const auto* exchange = std::get_if<work::Exchange>(&one);
      const bool own = exchange != nullptr && (exchange->op == CommOp::all_reduce ||
                                               exchange->op == CommOp::reduce_scatter);
      return own ? exchange : nullptr;
    };
    std::set<std::pair<CommOp, CommAxis>> kinds;
    for (const Action& action : program_.actions) {
      for (const Work& one : action.work)
        if (const auto* exchange = sums(one)) kinds.insert({exchange->op, exchange->axis});
    }
    for (const auto& [op, axis] : kinds) {
      const auto is = [&](const Work& one) {
        const auto* exchange = sums(one);
        return exchange != nullptr && exchange->op == op && exchange->axis == axis;
      };
      Mutation without{
          "all sums", fmt::format("no {} along {}", comm_name(op), comm_axis_name(axis)), program_},
          scaled{"all sums", fmt::format("scaled along {}", comm_axis_name(axis)), program_};
      for (Action& action : without.program.actions) {
        if (std::erase_if(action.work, is) > 0) renew(without.program, action);
      }
      for (Action& action : scaled.program.actions) {
        for (Work& one : action.work)
          if (is(one)) std::get<work::Exchange>(one).scale = 1.0 / layout_.extent(axis).ranks;
      }
      visit_(without);
      visit_(scaled);
    }
  }

  const Program& program_;
  const Layout& layout_;
  const std::vector<CommAxis> axes_;
  const std::function<void(const Mutation&)>& visit_;
  int action_ = 0;
};

}  // namespace

void for_each_mutation(const Program& program, const Layout& layout,
                       const std::function<void(const Mutation&)>& visit) {
  Mutator(program, layout, visit).run();
}

}  // namespace dstrain::test
