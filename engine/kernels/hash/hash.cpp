#include "engine/kernels/hash/hash.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "engine/base/error.h"
#include "engine/device/stream.h"
#include "engine/kernels/hash/hash_math.h"
#include "engine/kernels/hash/kernels.h"

namespace dstrain {
namespace kernels::cpu {

void add_words(const AddWords& args) {
  constexpr std::int64_t kWord = sizeof(std::uint64_t), kGrain = 1 << 16;
  const auto* bytes = static_cast<const std::byte*>(args.x);
  std::atomic<std::uint64_t> all = 0;
  at::parallel_for(0, args.bytes / kWord, kGrain, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t sum = 0;
    for (std::int64_t i = begin; i < end; ++i) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + i * kWord, kWord);
      sum += mixed_word(word, args.first + static_cast<std::uint64_t>(i));
    }
    all += sum;
  });
  if (const std::int64_t whole = args.bytes / kWord, rest = args.bytes % kWord; rest > 0) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes + whole * kWord, static_cast<std::size_t>(rest));
    all += mixed_word(word, args.first + static_cast<std::uint64_t>(whole));
  }
  *args.sum += all;
}

}  // namespace kernels::cpu

void add_hash(const at::Tensor& x, std::uint64_t salt, const at::Tensor& sum) {
  DSTRAIN_CHECK(x.defined() && x.is_contiguous() && x.element_size() >= 2 &&
                    sum.scalar_type() == at::kLong && sum.device() == x.device(),
                "hash: a dense tensor of at least 2 bytes an element, and a sum beside it");
  // Far enough apart that the words of two salts have different places.
  const kernels::AddWords args{.x = x.const_data_ptr(),
                               .bytes = static_cast<std::int64_t>(x.nbytes()),
                               .first = salt << 40,
                               .sum = static_cast<std::uint64_t*>(sum.mutable_data_ptr())};
  if (x.is_cuda()) {
    kernels::cuda::add_words(args, static_cast<cudaStream_t>(Stream::current(x.device()).handle()));
  } else {
    kernels::cpu::add_words(args);
  }
}

}  // namespace dstrain
