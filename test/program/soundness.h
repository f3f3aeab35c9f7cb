#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "test/program/models.h"
#include "test/support/catch.h"

/// What tests of programs ask of each case. Names of tests stand where these are called.
namespace dstrain::test {

/// What check finds, a line each.
inline std::string problems(const Program& program, const Case& c) {
  return fmt::format("{}", fmt::join(check(program, c.layout, c.cost), "\n"));
}

/// What each action names follows from its work.
inline void require_operands(const Program& program, const ModelCost& cost) {
  const auto sorted = [](std::vector<int> ids) {
    std::ranges::sort(ids);
    return ids;
  };
  for (const Action& action : program.actions) {
    const Operands operands = operands_of(action.work, action.frees, program.buffers);
    if (sorted(action.reads) != operands.reads || sorted(action.writes) != operands.writes ||
        action.comm != operands.comm)
      FAIL(fmt::format("the work of {} is another one", describe(action, cost)));
  }
}

/// The programs of the case are sound.
inline void require_sound(const Case& c) {
  for (const Program& program :
       {training_program(c.layout, c.cost, c.options),
        evaluation_program(c.layout, c.cost, c.options), gathering_program(c.layout, c.cost)}) {
    require_operands(program, c.cost);
    const std::string found = problems(program, c);
    if (!found.empty()) FAIL(found);
  }
}

/// Removes each wait in turn, which check must notice. How many there are.
inline std::size_t require_each_wait(Program program, const Case& c) {
  std::size_t removed = 0;
  for (std::size_t i = 0; i < program.actions.size(); ++i) {
    for (std::vector<int> Action::* waits : {&Action::after, &Action::after_previous}) {
      const std::vector<int> all = program.actions[i].*waits;
      for (std::size_t edge = 0; edge < all.size(); ++edge) {
        std::vector<int>& own = program.actions[i].*waits;
        own.erase(own.begin() + static_cast<std::ptrdiff_t>(edge));
        if (check(program, c.layout, c.cost).empty()) {
          FAIL(fmt::format("#{} {} on {} need not wait for #{} {}{}", i,
                           describe(program.actions[i], c.cost), lane_name(program.actions[i].lane),
                           all[edge],
                           describe(program.actions[static_cast<std::size_t>(all[edge])], c.cost),
                           waits == &Action::after ? "" : " of the run before"));
        }
        own = all;
        ++removed;
      }
    }
  }
  return removed;
}

}  // namespace dstrain::test
