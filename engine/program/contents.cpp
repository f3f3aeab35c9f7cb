#include "engine/program/contents.h"

#include <algorithm>
#include <utility>

#include "engine/base/index.h"

namespace dstrain::meaning {

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::parameters:
      return "parameters";
    case Kind::state:
      return "a state";
    case Kind::gradient:
      return "a gradient";
    case Kind::batch:
      return "a batch";
    case Kind::output:
      return "an output";
    case Kind::saved:
      return "saved tensors";
    case Kind::held:
      return "held tensors";
    case Kind::output_gradient:
      return "the gradient of an output";
    case Kind::block_state:
      return "untrained state";
  }
  return "?";
}

Value Value::further(std::int64_t elements) const {
  Value value = *this;
  if (unit > 0) value.begin += elements / unit;
  return value;
}

std::uint32_t axis_bits(CommAxis axis, const Layout& layout) {
  constexpr std::uint32_t kInner = kNumAxisSets, kOuter = 2 * kInner, kEnds = 4 * kInner;
  switch (axis.part()) {
    case CommAxis::Part::inner:
      return kInner;
    case CommAxis::Part::outer:
      return kOuter;
    case CommAxis::Part::ends:
      return kEnds;
    case CommAxis::Part::all:
      break;
  }
  std::uint32_t bits = 0;
  for (const Axis one : kAxes) {
    if (!axis.axes().contains(one) || layout.degree(one) == 1) continue;
    if (one != Axis::shard) {
      bits |= Axes(one).bits();
    } else {
      if (layout.second_degree > 1) bits |= kInner;
      if (layout.degrees.shard > layout.second_degree) bits |= kOuter;
    }
  }
  return bits;
}

void Content::assign(std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end,
                     const Value& value) {
  // At the end, as messages to many ranks are written.
  if (pieces.empty() || pieces.back().end <= begin) {
    const bool further = !pieces.empty() && pieces.back().end == begin &&
                         pieces.back().value.further(begin - pieces.back().begin) == value;
    if (further)
      pieces.back().end = end;
    else
      pieces.push_back({begin, end, value});
    return;
  }
  std::vector<Piece> list;
  list.reserve(pieces.size() + 1);
  const auto add = [&](Piece piece) {
    if (piece.begin >= piece.end) return;
    if (!list.empty() && list.back().end == piece.begin &&
        list.back().value.further(piece.begin - list.back().begin) == piece.value) {
      list.back().end = piece.end;
    } else {
      list.push_back(std::move(piece));
    }
  };
  bool placed = false;
  for (Piece& piece : pieces) {
    if (!placed && piece.end > begin) {
      if (piece.begin < begin) add({piece.begin, begin, piece.value});
      add({begin, end, value});
      placed = true;
    }
    if (piece.end <= begin || piece.begin >= end) {
      add(std::move(piece));
    } else if (piece.end > end) {
      add({end, piece.end, piece.value.further(end - piece.begin)});
    }
  }
  if (!placed) add({begin, end, value});
  pieces = std::move(list);
}

bool Content::cover(const std::vector<Piece>& pieces, std::int64_t begin, std::int64_t end,
                    std::vector<Part>& parts) {
  for (auto piece = std::ranges::upper_bound(pieces, begin, {}, &Piece::end); begin != end;
       ++piece) {
    if (piece == pieces.end() || piece->begin > begin) return false;
    const std::int64_t until = std::min(piece->end, end);
    parts.push_back({piece->value.further(begin - piece->begin), until - begin});
    begin = until;
  }
  return true;
}

std::optional<std::vector<Part>> Content::read(const View& view, int ranks) const {
  std::vector<Part> parts;
  const std::int64_t end = view.begin + view.elements;
  if (!view.share) {
    if (!cover(plain_, view.begin, end, parts)) return std::nullopt;
    for (const Piece& piece : shared_) {
      const std::int64_t last = piece.end + (ranks_ - 1) * share_->stride;
      if (piece.begin < end && last > view.begin)
        parts.push_back({piece.value, piece.end - piece.begin});
    }
    return parts;
  }
  if (!shared_.empty() && share_ != view.share) return std::nullopt;
  if (cover(shared_, view.begin, end, parts)) return parts;
  // Each rank's part of what all hold.
  const bool some = std::ranges::any_of(
      shared_, [&](const Piece& piece) { return piece.begin < end && piece.end > view.begin; });
  parts.clear();
  std::vector<Part> all;
  if (some || !cover(plain_, view.begin, end + (ranks - 1) * view.share->stride, all) ||
      all.size() != 1 || all.front().value.share || all.front().value.unit != 1)
    return std::nullopt;
  parts.push_back({std::move(all.front().value), view.elements});
  parts.front().value.share = view.share;
  return parts;
}

std::vector<Value> Content::touching(const View& view, int ranks) const {
  std::vector<Value> values;
  const std::int64_t own_end = view.begin + view.elements,
                     end = own_end + (view.share ? (ranks - 1) * view.share->stride : 0);
  for (const Piece& piece : plain_)
    if (piece.begin < end && piece.end > view.begin) values.push_back(piece.value);
  const bool alike = view.share && view.share == share_;
  for (const Piece& piece : shared_) {
    const std::int64_t last = alike ? piece.end : piece.end + (ranks_ - 1) * share_->stride;
    if (piece.begin < (alike ? own_end : end) && last > view.begin) values.push_back(piece.value);
  }
  return values;
}

bool Content::write(const View& view, const Value& value, int ranks) {
  const std::int64_t end = view.begin + view.elements;
  if (view.share) {
    if (!shared_.empty() && share_ != view.share) return false;
    share_ = view.share;
    ranks_ = ranks;
    assign(shared_, view.begin, end, value);
    return true;
  }
  for (const Piece& piece : shared_) {
    const std::int64_t last = piece.end + (ranks_ - 1) * share_->stride;
    if (piece.begin < end && last > view.begin && (piece.begin < view.begin || last > end))
      return false;
  }
  std::erase_if(shared_,
                [&](const Piece& piece) { return piece.begin < end && piece.end > view.begin; });
  if (shared_.empty()) share_ = std::nullopt, ranks_ = 1;
  assign(plain_, view.begin, end, value);
  return true;
}

}  // namespace dstrain::meaning
