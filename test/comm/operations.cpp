#include "test/comm/operations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "engine/base/philox.h"

namespace dstrain::test {
namespace {

/// Values that bf16 holds exactly, also summed over four ranks.
float value(int rank, std::int64_t i) { return static_cast<float>((rank + 1) * (i % 7 + 1)); }

class Checker {
 public:
  Checker(Communicator& comm, at::Device device, at::ScalarType dtype, std::int64_t count)
      : comm_(comm), device_(device), dtype_(dtype), count_(count), n_(comm.size()) {}

  void run() {
    all_reduce();
    all_gather();
    reduce_scatter();
    beside_work();
    broadcast();
    all_to_all();
    exchange_rows();
    point_to_point();
    comm_.barrier();
  }

 private:
  using Fill = std::function<float(std::int64_t)>;

  at::Tensor make(std::int64_t count, const Fill& fill) const {
    at::Tensor x = at::empty({count}, at::kFloat);
    float* data = x.mutable_data_ptr<float>();
    for (std::int64_t i = 0; i < count; ++i) data[i] = fill(i);
    return x.to(dtype_).to(device_);
  }
  at::Tensor zeros(std::int64_t count) const {
    return at::zeros({count}, at::TensorOptions(dtype_).device(device_));
  }

  void check(const char* what, const at::Tensor& x, const Fill& expected) const {
    expect(x.equal(make(x.numel(), expected)),
           fmt::format("{} is wrong on rank {} of {} ({} x {} on {})", what, comm_.rank(), n_,
                       count_, c10::toString(dtype_), device_.str()));
  }

  void all_reduce() {
    at::Tensor x = make(count_, [&](std::int64_t i) { return value(comm_.rank(), i); });
    comm_.all_reduce(x, ReduceOp::sum);
    check("all_reduce sum", x,
          [&](std::int64_t i) { return static_cast<float>(n_ * (n_ + 1) / 2) * value(0, i); });
    x = make(count_, [&](std::int64_t i) { return value(comm_.rank(), i); });
    comm_.all_reduce(x, ReduceOp::max);
    check("all_reduce max", x, [&](std::int64_t i) { return value(n_ - 1, i); });
  }

  void all_gather() {
    const Fill gathered = [&](std::int64_t i) {
      return value(static_cast<int>(i / count_), i % count_);
    };
    const at::Tensor part = make(count_, [&](std::int64_t i) { return value(comm_.rank(), i); });
    at::Tensor whole = zeros(n_ * count_);
    comm_.all_gather(whole, part);
    check("all_gather", whole, gathered);

    whole = zeros(n_ * count_);
    const at::Tensor own = whole.narrow(0, comm_.rank() * count_, count_);
    own.copy_(part);
    comm_.all_gather(whole, own);
    check("all_gather in place", whole, gathered);
  }

  void reduce_scatter() {
    const Fill brought = [&](std::int64_t i) {
      return value(comm_.rank(), i % count_) + static_cast<float>(i / count_);
    };
    const Fill reduced = [&](std::int64_t i) {
      return static_cast<float>(n_ * (n_ + 1) / 2) * value(0, i) +
             static_cast<float>(n_ * comm_.rank());
    };
    at::Tensor whole = make(n_ * count_, brought);
    at::Tensor part = zeros(count_);
    comm_.reduce_scatter(part, whole);
    check("reduce_scatter", part, reduced);
    check("reduce_scatter's input", whole, brought);

    at::Tensor own = whole.narrow(0, comm_.rank() * count_, count_);
    comm_.reduce_scatter(own, whole);
    check("reduce_scatter in place", own, reduced);
  }

  /// Work may read this rank's part while all are gathered, and write it while they are summed.
  void beside_work() {
    const Fill own = [&](std::int64_t i) { return value(comm_.rank(), i); };
    const at::Tensor part = make(count_, own);
    at::Tensor whole = zeros(n_ * count_);
    int calls = 0;
    comm_.all_gather(whole, part, [&] {
      ++calls;
      check("this rank's part", part, own);
    });
    check("all_gather beside work", whole,
          [&](std::int64_t i) { return value(static_cast<int>(i / count_), i % count_); });

    whole = make(n_ * count_, [&](std::int64_t i) {
      return i / count_ == comm_.rank() ? -1 : value(comm_.rank(), i % count_);
    });
    at::Tensor sum = zeros(count_);
    comm_.reduce_scatter(sum, whole, [&] {
      ++calls;
      whole.narrow(0, comm_.rank() * count_, count_).copy_(part);
    });
    check("reduce_scatter beside work", sum,
          [&](std::int64_t i) { return static_cast<float>(n_ * (n_ + 1) / 2) * value(0, i); });
    expect(calls == 2, "work is called once");
  }

  void broadcast() {
    for (int root = 0; root < n_; ++root) {
      at::Tensor x = make(count_, [&](std::int64_t i) { return value(comm_.rank(), i); });
      comm_.broadcast(x, root);
      check("broadcast", x, [&](std::int64_t i) { return value(root, i); });
    }
  }

  void all_to_all() {
    const auto sent = [](int from, int to, std::int64_t i) {
      return static_cast<float>(40 * from + 10 * to + i % 5);
    };
    const at::Tensor input = make(n_ * count_, [&](std::int64_t i) {
      return sent(comm_.rank(), static_cast<int>(i / count_), i % count_);
    });
    at::Tensor output = zeros(n_ * count_);
    comm_.all_to_all(output, input);
    check("all_to_all", output, [&](std::int64_t i) {
      return sent(static_cast<int>(i / count_), comm_.rank(), i % count_);
    });
  }

  /// From rank `from` to rank `to` so many rows: none at all of rank 0's, or of all but rank 0's.
  void exchange_rows() {
    if (count_ == 0) return;
    for (const bool first_sends : {false, true}) {
      const auto rows = [&](int from, int to) {
        return (from == 0) == first_sends ? std::int64_t{from + 2 * to} : std::int64_t{0};
      };
      ExchangedRows parts;
      std::vector<float> brought, expected;
      for (int peer = 0; peer < n_; ++peer) {
        parts.sent.push_back(rows(comm_.rank(), peer));
        parts.received.push_back(rows(peer, comm_.rank()));
        const auto fill = [&](std::vector<float>& to, std::int64_t number, int from, int target) {
          for (std::int64_t i = 0; i < number * count_; ++i)
            to.push_back(static_cast<float>(20 * from + 5 * target + i % 5));
        };
        fill(brought, parts.sent.back(), comm_.rank(), peer);
        fill(expected, parts.received.back(), peer, comm_.rank());
      }
      const auto matrix = [&](const std::vector<float>& values) {
        return make(static_cast<std::int64_t>(values.size()),
                    [&](std::int64_t i) { return values[static_cast<std::size_t>(i)]; })
            .view({-1, count_});
      };
      const at::Tensor input = matrix(brought);
      at::Tensor output = at::zeros_like(matrix(expected));
      comm_.all_to_all(output, input, parts);
      expect(output.equal(matrix(expected)),
             fmt::format("all_to_all of rows is wrong on rank {} of {} ({} on {})", comm_.rank(),
                         n_, c10::toString(dtype_), device_.str()));
    }
  }

  /// Every ordered pair in one order that all ranks share, so that no two wait for each other.
  void point_to_point() {
    for (int from = 0; from < n_; ++from) {
      for (int to = 0; to < n_; ++to) {
        if (from == to) continue;
        const Fill letter = [&](std::int64_t i) { return value(from, i) + static_cast<float>(to); };
        if (comm_.rank() == from) comm_.send(make(count_, letter), to);
        if (comm_.rank() == to) {
          at::Tensor x = zeros(count_);
          comm_.receive(x, from);
          check("receive", x, letter);
        }
      }
    }
  }

  Communicator& comm_;
  at::Device device_;
  at::ScalarType dtype_;
  std::int64_t count_;
  int n_;
};

}  // namespace

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void expect(bool ok, const std::string& text) {
  if (!ok) throw std::runtime_error(text);
}

void check_operations(Communicator& comm, at::Device device, at::ScalarType dtype,
                      std::int64_t count) {
  Checker(comm, device, dtype, count).run();
}

at::Tensor uneven(std::int64_t count, std::uint64_t seed) {
  at::Tensor x = at::empty({count}, at::kFloat);
  float* data = x.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < count; ++i) {
    const Philox random = Philox::at(seed, 0, static_cast<std::uint64_t>(i));
    data[i] = std::exp2(random.uniform(0) * 20 - 10) * (random.uniform(1) - 0.5F);
  }
  return x;
}

}  // namespace dstrain::test
