#include "engine/checkpoint/foreign_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/mesh/pieces.h"
#include "engine/weights/torch_weights.h"

namespace dstrain {
namespace {

void require_readable(const std::string& dtype, const std::filesystem::path& path) {
  if (is_readable(dtype)) return;
  throw Error(ErrorKind::data, fmt::format("{} holds a tensor of {}", path.string(), dtype),
              "dstrain reads F32, F16 and BF16; 8-bit states cannot be continued exactly");
}

}  // namespace

const std::string& ForeignTensor::Part::dtype() const {
  return tensor != nullptr ? tensor->dtype : weights->entries().at(name).dtype;
}

ForeignTensor::ForeignTensor(const std::shared_ptr<const TorchZip>& zip, const PickleTensor& tensor)
    : shape_(tensor.shape) {
  require_readable(tensor.dtype, zip->path());
  (void)zip->storage(*tensor.storage);  // it is there and long enough
  parts_.push_back({.range = {0, numel()}, .zip = zip, .tensor = &tensor});
}

ForeignTensor::ForeignTensor(const std::shared_ptr<const WeightFile>& file, const std::string& name)
    : shape_(file->entries().at(name).shape) {
  require_readable(file->entries().at(name).dtype, file->path());
  parts_.push_back({.range = {0, numel()}, .weights = file, .name = name});
}

std::int64_t ForeignTensor::numel() const { return num_elements(shape_); }

void ForeignTensor::add(Range range, const ForeignTensor& tensor, std::int64_t begin) {
  if (begin < 0 || range.size() > tensor.numel() - begin) {
    throw Error(ErrorKind::data,
                fmt::format("{} has {} elements where {} are needed from element {}",
                            tensor.parts_.empty() ? "a tensor" : tensor.file_of(0), tensor.numel(),
                            range.size(), begin),
                "files of different checkpoints were mixed, or one was cut off");
  }
  for (const Part& part : tensor.parts_) {
    const Range met = intersect(part.range, {begin, begin + range.size()});
    if (met.empty()) continue;
    Part own = part;
    own.begin += met.begin - part.range.begin;
    own.range = {range.begin + met.begin - begin, range.begin + met.end - begin};
    parts_.push_back(std::move(own));
  }
}

void ForeignTensor::settle(const std::string& name) {
  std::ranges::sort(parts_, {}, [](const Part& part) { return part.range.begin; });
  std::int64_t next = 0;
  for (const Part& part : parts_) {
    if (part.range.begin != next) {
      throw Error(ErrorKind::data,
                  fmt::format("'{}': {} from element {}", name,
                              part.range.begin > next ? "no file holds it" : "two files hold it",
                              std::min(next, part.range.begin)));
    }
    next = part.range.end;
  }
  if (next != numel()) {
    throw Error(ErrorKind::data,
                fmt::format("'{}': no file holds it from element {} of {}", name, next, numel()));
  }
}

void ForeignTensor::read(std::int64_t begin, std::span<float> out) const {
  const Range wanted{begin, begin + static_cast<std::int64_t>(out.size())};
  auto part =
      std::ranges::upper_bound(parts_, begin, {}, [](const Part& p) { return p.range.begin; });
  if (part != parts_.begin()) --part;
  for (; part != parts_.end() && part->range.begin < wanted.end; ++part) {
    const Range met = intersect(part->range, wanted);
    if (met.empty()) continue;
    const std::int64_t from = part->begin + met.begin - part->range.begin;
    const auto to = out.subspan(to_index(met.begin - begin), to_index(met.size()));
    if (part->tensor != nullptr) {
      read_tensor(*part->zip, *part->tensor, from, to);
    } else {
      part->weights->read(part->name, from, to);
    }
  }
}

void ForeignTensor::will_read(Range range) const {
  for (const Part& part : parts_) {
    const Range met = intersect(part.range, range);
    if (met.empty() || part.tensor == nullptr) continue;
    const auto width = static_cast<std::uint64_t>(dtype_width(part.tensor->dtype));
    const auto place = part.zip->storage(*part.tensor->storage);
    const std::int64_t first = part.tensor->offset + part.begin + met.begin - part.range.begin;
    part.zip->file()->will_read(place.offset + static_cast<std::uint64_t>(first) * width,
                                static_cast<std::uint64_t>(met.size()) * width);
  }
}

std::string ForeignTensor::file_of(std::int64_t element) const {
  for (const Part& part : parts_) {
    if (element < part.range.begin || element >= part.range.end) continue;
    return part.tensor != nullptr ? part.zip->path().string() : part.weights->path().string();
  }
  return "no file";
}

}  // namespace dstrain
