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

void ForeignTensor::add_box(const ForeignBox& box, const ForeignTensor& tensor) {
  DSTRAIN_CHECK(tensor.parts_.size() == 1 && tensor.numel() == box.numel(),
                "a box of another tensor");
  Part own = tensor.parts_.front();
  own.range = box.extent();
  if (own.range.size() != box.numel()) own.box = box;
  parts_.push_back(std::move(own));
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

Range ForeignTensor::Part::own(Range wanted) const {
  if (box) return {box->below(wanted.begin), box->below(wanted.end)};
  const Range met = intersect(range, wanted);
  if (met.empty()) return {};
  return {begin + met.begin - range.begin, begin + met.end - range.begin};
}

void ForeignTensor::Part::read(std::int64_t from, std::span<float> out) const {
  if (tensor != nullptr) {
    read_tensor(*zip, *tensor, from, out);
  } else {
    weights->read(name, from, out);
  }
}

void ForeignTensor::read(std::int64_t begin, std::span<float> out) const {
  const Range wanted{begin, begin + static_cast<std::int64_t>(out.size())};
  std::vector<float> values;
  for (const Part& part : parts_) {
    if (intersect(part.range, wanted).empty()) continue;
    const Range own = part.own(wanted);
    if (own.empty()) continue;
    if (!part.box) {
      const std::int64_t to = part.range.begin + own.begin - part.begin - begin;
      part.read(own.begin, out.subspan(to_index(to), to_index(own.size())));
      continue;
    }
    values.resize(to_index(own.size()));
    part.read(own.begin, values);
    for (std::int64_t at = own.begin; at < own.end;) {
      const std::int64_t count = std::min(part.box->run(at), own.end - at);
      std::copy_n(values.begin() + (at - own.begin), count,
                  out.begin() + (part.box->place(at) - begin));
      at += count;
    }
  }
}

void ForeignTensor::will_read(Range range) const {
  for (const Part& part : parts_) {
    if (intersect(part.range, range).empty() || part.tensor == nullptr) continue;
    const Range own = part.own(range);
    if (own.empty()) continue;
    const auto width = static_cast<std::uint64_t>(dtype_width(part.tensor->dtype));
    const auto place = part.zip->storage(*part.tensor->storage);
    part.zip->file()->will_read(
        place.offset + static_cast<std::uint64_t>(part.tensor->offset + own.begin) * width,
        static_cast<std::uint64_t>(own.size()) * width);
  }
}

std::string ForeignTensor::file_of(std::int64_t element) const {
  for (const Part& part : parts_) {
    if (part.own({element, element + 1}).empty()) continue;
    return part.tensor != nullptr ? part.zip->path().string() : part.weights->path().string();
  }
  return "no file";
}

}  // namespace dstrain
