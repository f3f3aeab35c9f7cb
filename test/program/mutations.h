#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/program/program.h"

namespace dstrain::test {

/// A program changed in one place, as a fault in the builder would change it: what follows from the
/// work (Action::reads, writes, comm) is changed with it.
struct Mutation {
  std::string operation;  ///< "exchange", "move" ...
  std::string change;     ///< "left out", "doubled" ...
  Program program;
  int action = -1;
};

/// Visits every mutation of the work of a program: each piece left out, doubled, and put behind the
/// next one where they touch the same memory; each view moved, cut, and of another buffer; each
/// operation, axis, scale, format, peer, flag and number another one. And of whole kinds: every sum
/// along an axis left out at once.
void for_each_mutation(const Program& program, const Layout& layout,
                       const std::function<void(const Mutation&)>& visit);

}  // namespace dstrain::test
