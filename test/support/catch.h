#pragma once

// LibTorch's logging has a CHECK too. It comes first, so that Catch2's is what tests have, whatever
// is included later.
#if __has_include(<c10/util/Logging.h>)
#include <c10/util/Logging.h>
#endif

// Debian 12 has Catch2 v2, Ubuntu 24.04 has v3: the one place that knows.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
