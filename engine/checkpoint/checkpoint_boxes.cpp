#include "engine/checkpoint/checkpoint_boxes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"

namespace dstrain {
namespace {

/// Goes down the rows of a tensor from one edge of a box to the next and keeps the boxes that the
/// rows between two edges meet: they must stand side by side without a gap.
class CoverageCheck {
 public:
  CoverageCheck(const StoredTensor& tensor, const std::string& where)
      : tensor_(tensor), whole_(tensor.name, tensor.shape), where_(where) {}

  /// The boxes are sorted by their first rows, none is empty or outside of the tensor.
  void run() {
    if (whole_.numel() == 0) return;
    auto next = tensor_.boxes.begin();
    for (std::int64_t row = 0; row < whole_.rows.end;) {
      while (!ends_.empty() && ends_.begin()->first == row) close(ends_.begin());
      for (; next != tensor_.boxes.end() && next->rows.begin == row; ++next) open(*next);
      std::int64_t edge = ends_.empty() ? whole_.rows.end : ends_.begin()->first;
      if (next != tensor_.boxes.end()) edge = std::min(edge, next->rows.begin);
      if (width_ != whole_.columns.end) fail("lacks the", {row, edge}, first_gap());
      row = edge;
    }
  }

 private:
  using Ends = std::multimap<std::int64_t, const StoredBox*>;

  void open(const StoredBox& box) {
    const auto after = open_.lower_bound(box.columns.begin);
    if (after != open_.end()) refuse_overlap(box, *after->second);
    if (after != open_.begin()) refuse_overlap(box, *std::prev(after)->second);
    open_.emplace_hint(after, box.columns.begin, &box);
    ends_.emplace(box.rows.end, &box);
    width_ += box.columns.size();
  }
  void close(Ends::iterator end) {
    width_ -= end->second->columns.size();
    open_.erase(end->second->columns.begin);
    ends_.erase(end);
  }
  void refuse_overlap(const StoredBox& a, const StoredBox& b) const {
    const Range columns = intersect(a.columns, b.columns);
    if (!columns.empty()) fail("has twice the", intersect(a.rows, b.rows), columns);
  }
  [[nodiscard]] Range first_gap() const {
    std::int64_t covered = 0;
    for (const auto& [begin, box] : open_) {
      if (begin > covered) return {covered, begin};
      covered = box->columns.end;
    }
    return {covered, whole_.columns.end};
  }
  [[noreturn]] void fail(const char* how, Range rows, Range columns) const {
    throw Error(ErrorKind::checkpoint, fmt::format("{} {} {} of '{}'", where_, how,
                                                   box_text(rows, columns), tensor_.name));
  }

  const StoredTensor& tensor_;
  Piece whole_;
  const std::string& where_;
  std::map<std::int64_t, const StoredBox*> open_;  ///< by first column
  Ends ends_;                                      ///< of the open ones, by end of rows
  std::int64_t width_ = 0;                         ///< columns of the open ones together
};

}  // namespace

std::string box_text(Range rows, Range columns) {
  return fmt::format("rows [{}, {}), columns [{}, {})", rows.begin, rows.end, columns.begin,
                     columns.end);
}

void check_coverage(std::vector<StoredTensor>& tensors, const std::string& where) {
  for (StoredTensor& tensor : tensors) {
    std::ranges::sort(tensor.boxes, {}, [](const StoredBox& box) {
      return std::pair(box.rows.begin, box.columns.begin);
    });
    CoverageCheck(tensor, where).run();
  }
}

StoredBoxes::StoredBoxes(Manifest manifest, const std::string& where)
    : manifest_(std::move(manifest)), where_(where) {
  index_tensors();
  index_files();
  check_whole();
  if (manifest_.boxes_hash.empty()) return;
  const std::string computed = hash();
  if (computed == manifest_.boxes_hash) return;
  fail(
      fmt::format("describes boxes of another layout: those that are computed from it have the "
                  "hash {}, those that were saved {}",
                  computed, manifest_.boxes_hash));
}

void StoredBoxes::fail(const std::string& what) const {
  throw Error(ErrorKind::checkpoint, fmt::format("{} {}", where_, what),
              "take an older checkpoint; `dstrain checkpoint list` shows them");
}

std::size_t StoredBoxes::tensor_index(const std::string& name,
                                      const std::vector<std::int64_t>& shape) {
  const auto [at, is_new] = index_.try_emplace(name, tensors_.size());
  if (is_new) {
    tensors_.push_back({.name = name, .shape = shape, .boxes = {}});
    sources_.emplace_back();
  } else if (tensors_[at->second].shape != shape) {
    fail(fmt::format("gives '{}' two shapes", name));
  }
  return at->second;
}

void StoredBoxes::index_tensors() {
  for (StoredTensor& tensor : manifest_.tensors) {
    const std::size_t index = tensor_index(tensor.name, tensor.shape);
    tensors_[index].boxes = std::move(tensor.boxes);
  }
  manifest_.tensors.clear();  // they are in tensors_
  for (std::size_t g = 0; g < manifest_.groups.size(); ++g) {
    const SavedGroup& group = manifest_.groups[g];
    first_part_.emplace_back();
    before_.emplace_back();
    std::size_t parts = 0;
    std::int64_t elements = 0;
    for (const SavedParameter& parameter : group.parameters) {
      first_part_[g].push_back(parts);
      parts += parameter.parts.size();
      before_[g].push_back(elements);
      elements += saved_elements(parameter);
    }
    num_parts_.push_back(parts);
    tensors_of_group_.emplace_back(parts * group.states.size());
    for (std::size_t s = 0; s < group.states.size(); ++s) {
      const SavedState& state = group.states[s];
      for (std::size_t p = 0; p < group.parameters.size(); ++p) {
        const SavedParameter& parameter = group.parameters[p];
        std::int64_t begin = parameter.offset;
        for (std::size_t i = 0; i < parameter.parts.size(); ++i) {
          const Piece& part = parameter.parts[i];
          const Range all{begin, begin + part.numel()};
          begin = all.end;
          if (intersect(all, state.range).empty()) continue;
          const std::size_t tensor =
              tensor_index(state.prefixes[parameter.rule] + part.name, part.shape);
          tensors_of_group_[g][s * parts + first_part_[g][p] + i] = tensor;
          sources_[tensor].push_back(
              {.group = g, .state = s, .parameter = p, .part = i, .begin = all.begin});
        }
      }
    }
  }
}

std::int64_t StoredBoxes::elements_before(std::size_t group, std::int64_t at) const {
  const std::vector<SavedParameter>& parameters = manifest_.groups[group].parameters;
  const auto next = std::ranges::upper_bound(parameters, at, {}, &SavedParameter::offset);
  if (next == parameters.begin()) return 0;
  const auto last = std::prev(next);
  return before_[group][to_index(last - parameters.begin())] +
         std::min(at - last->offset, saved_elements(*last));
}

void StoredBoxes::index_files() {
  for (const SavedGroup& group : manifest_.groups)
    files_of_.emplace_back(to_index(group.shards) * to_index(group.holders),
                           manifest_.files.size());
  for (const std::vector<std::size_t>& layout : manifest_.layouts) {
    std::size_t number = 0;
    first_state_.emplace_back();
    for (const std::size_t group : layout) {
      first_state_.back().emplace(group, number);
      number += manifest_.groups[group].states.size();
    }
  }
  state_begins_.resize(manifest_.files.size());
  for (std::size_t f = 0; f < manifest_.file_layouts.size(); ++f) {
    const FileLayout& held = manifest_.file_layouts[f];
    if (held.layout == FileLayout::kNone) continue;
    const FileRecord& file = manifest_.files[f];
    const std::int64_t max = (file.bytes - held.data) / 4;
    std::int64_t done = 0;
    for (const std::size_t g : manifest_.layouts[held.layout]) {
      const SavedGroup& group = manifest_.groups[g];
      const SavedPlace place = held.places[group.place];
      if (place.shard >= group.shards || place.holder >= group.holders) {
        fail(fmt::format("gives {} part {} of {} and {} of {} of a group", file.name, place.shard,
                         group.shards, place.holder, group.holders));
      }
      const std::size_t slot =
          to_index(place.shard) * to_index(group.holders) + to_index(place.holder);
      std::size_t& of = files_of_[g][slot];
      if (of != manifest_.files.size()) {
        fail(fmt::format("has the same part of '{}' in {} and {}",
                         group.parameters.empty() ? "" : group.parameters[0].parts[0].name,
                         manifest_.files[of].name, file.name));
      }
      of = f;
      const Range range = saved_range(group, place);
      for (const SavedState& state : group.states) {
        state_begins_[f].push_back(done);
        const Range met = intersect(range, state.range);
        const std::int64_t count =
            met.empty() ? 0 : elements_before(g, met.end) - elements_before(g, met.begin);
        if (count > max - done) {
          fail(fmt::format("puts more into {} than its {} bytes", file.name, file.bytes));
        }
        done += count;
      }
    }
  }
  for (std::size_t g = 0; g < files_of_.size(); ++g) {
    for (std::size_t slot = 0; slot < files_of_[g].size(); ++slot) {
      if (files_of_[g][slot] != manifest_.files.size()) continue;
      const SavedGroup& group = manifest_.groups[g];
      const auto holders = to_index(group.holders);
      fail(fmt::format("lacks part {} of {} and {} of {} of '{}'", slot / holders, group.shards,
                       slot % holders, holders,
                       group.parameters.empty() ? "" : group.parameters[0].parts[0].name));
    }
  }
}

/// With every part of a group in one file, tensors are whole where the pieces of groups are.
void StoredBoxes::check_whole() const {
  std::vector<StoredTensor> whole = tensors_;
  for (std::size_t g = 0; g < manifest_.groups.size(); ++g) {
    const SavedGroup& group = manifest_.groups[g];
    for (std::size_t s = 0; s < group.states.size(); ++s) {
      for_each_saved_box(group, group.states[s], {0, group.padded},
                         [&](const SavedParameter& parameter, const Piece& part, Range rows,
                             Range columns, std::int64_t) {
                           whole[tensor_of(g, s, parameter, part)].boxes.push_back(
                               {.file = 0, .rows = rows, .columns = columns, .offset = 0});
                         });
    }
  }
  check_coverage(whole, where_);
}

std::size_t StoredBoxes::tensor_of(std::size_t group, std::size_t state,
                                   const SavedParameter& parameter, const Piece& part) const {
  const auto number = to_index(&parameter - manifest_.groups[group].parameters.data());
  return tensors_of_group_[group][state * num_parts_[group] + first_part_[group][number] +
                                  to_index(&part - parameter.parts.data())];
}

std::vector<StoredBox> StoredBoxes::boxes(std::size_t tensor, Range rows) const {
  std::vector<StoredBox> boxes;
  for (const StoredBox& box : tensors_[tensor].boxes) {
    if (!intersect(box.rows, rows).empty()) boxes.push_back(box);
  }
  for (const Source& source : sources_[tensor]) add_boxes(source, rows, boxes);
  return boxes;
}

void StoredBoxes::add_boxes(const Source& source, Range rows, std::vector<StoredBox>& boxes) const {
  const SavedGroup& group = manifest_.groups[source.group];
  const SavedState& state = group.states[source.state];
  const SavedParameter& parameter = group.parameters[source.parameter];
  const Piece& part = parameter.parts[source.part];
  const Range met = intersect(rows, part.rows);
  if (met.empty()) return;
  const std::int64_t width = part.columns.size();
  const Range wanted = intersect(state.range, {source.begin + (met.begin - part.rows.begin) * width,
                                               source.begin + (met.end - part.rows.begin) * width});
  if (wanted.empty()) return;
  // Slots lie one after the other in the flat group: the first one that ends behind its begin.
  const std::vector<std::size_t>& files = files_of_[source.group];
  const auto range_of = [&group](std::size_t slot) {
    const auto holders = to_index(group.holders);
    return saved_range(group, {.shard = static_cast<int>(slot / holders),
                               .holder = static_cast<int>(slot % holders)});
  };
  std::size_t slot = 0;
  for (std::size_t end = files.size(); slot < end;) {
    const std::size_t middle = slot + (end - slot) / 2;
    if (range_of(middle).end > wanted.begin) {
      end = middle;
    } else {
      slot = middle + 1;
    }
  }
  for (; slot < files.size(); ++slot) {
    const Range range = range_of(slot);
    if (range.begin >= wanted.end) break;
    const std::size_t file = files[slot];
    const FileLayout& held = manifest_.file_layouts[file];
    const std::size_t number = first_state_[held.layout].at(source.group) + source.state;
    const std::int64_t first =
        elements_before(source.group, std::max(range.begin, state.range.begin));
    for_each_saved_box(group, state, intersect(range, wanted),
                       [&](const SavedParameter&, const Piece& piece, Range box_rows, Range columns,
                           std::int64_t at) {
                         if (&piece != &part) return;
                         const std::int64_t element = state_begins_[file][number] +
                                                      elements_before(source.group, at) - first;
                         boxes.push_back({.file = file,
                                          .rows = box_rows,
                                          .columns = columns,
                                          .offset = held.data + 4 * element});
                       });
  }
}

std::string StoredBoxes::hash() const {
  constexpr std::size_t kBoxesAtOnce = 4096;
  using Line = std::array<std::int64_t, 7>;
  FileHash hash;
  std::vector<Line> lines;
  const auto flush = [&] {
    hash.update(std::as_bytes(std::span(lines)));
    lines.clear();
  };
  for (std::size_t f = 0; f < manifest_.file_layouts.size(); ++f) {
    const FileLayout& held = manifest_.file_layouts[f];
    if (held.layout == FileLayout::kNone) continue;
    std::int64_t offset = held.data;
    for (const std::size_t g : manifest_.layouts[held.layout]) {
      const SavedGroup& group = manifest_.groups[g];
      const Range range = saved_range(group, held.places[group.place]);
      for (std::size_t s = 0; s < group.states.size(); ++s) {
        for_each_saved_box(
            group, group.states[s], range,
            [&](const SavedParameter& parameter, const Piece& part, Range rows, Range columns,
                std::int64_t) {
              lines.push_back({static_cast<std::int64_t>(f),
                               static_cast<std::int64_t>(tensor_of(g, s, parameter, part)),
                               rows.begin, rows.end, columns.begin, columns.end, offset});
              offset += 4 * rows.size() * columns.size();
            });
        if (lines.size() >= kBoxesAtOnce) flush();
      }
    }
  }
  flush();
  return hash.hex();
}

}  // namespace dstrain
