#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

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

/// The programs of the case are sound.
inline void require_sound(const Case& c) {
  for (const Program& program :
       {training_program(c.layout, c.cost, c.options),
        evaluation_program(c.layout, c.cost, c.options), gathering_program(c.layout, c.cost)}) {
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
