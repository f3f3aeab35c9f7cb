#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

/// What an evaluation of images counts beside its accuracy.
namespace dstrain::report {

/// How often images of each class were taken for each class.
struct Confusion {
  static constexpr std::int64_t kMaxClasses = 4096;  ///< more are not counted

  std::vector<std::string> names;    ///< of the classes, in the order of their labels
  std::vector<std::int64_t> counts;  ///< [right class, predicted class]

  [[nodiscard]] std::size_t classes() const { return names.size(); }
  [[nodiscard]] std::int64_t count(std::size_t right, std::size_t predicted) const {
    return counts[right * names.size() + predicted];
  }
};

/// What the counts say of one class; nan where there is nothing to divide by.
struct ClassFigures {
  std::int64_t images = 0;                                      ///< of the class
  std::int64_t right = 0;                                       ///< of them, taken for it
  double recall = std::numeric_limits<double>::quiet_NaN();     ///< right / images
  double precision = std::numeric_limits<double>::quiet_NaN();  ///< right / all taken for it
  double f1 = std::numeric_limits<double>::quiet_NaN();         ///< their harmonic mean
  std::size_t other = 0;      ///< the class that its images were taken for most often, if any was
  std::int64_t as_other = 0;  ///< how often; 0: never for another
};
[[nodiscard]] std::vector<ClassFigures> class_figures(const Confusion& confusion);

/// Images of one class that were taken for another.
struct ConfusedPair {
  std::size_t right = 0, predicted = 0;
  std::int64_t count = 0;
};
inline constexpr std::size_t kConfusedShown = 20;  ///< in a report
/// The pairs with the largest counts, largest first, at most so many; none whose count is 0.
[[nodiscard]] std::vector<ConfusedPair> most_confused(const Confusion& confusion, std::size_t max);

/// "otter: 61 of 100 right, most often taken for seal (23)", a line for each of the classes with
/// the smallest recall, at most so many; none of which all are right.
[[nodiscard]] std::vector<std::string> worst_classes(const Confusion& confusion, std::size_t max);

/// RFC 4180, with \n: the header has "class" and the predicted classes, a row the right class and
/// its counts.
[[nodiscard]] std::string confusion_csv(const Confusion& confusion);
/// A row for each class: class, images, right, recall, precision, f1, most_often_taken_for, times.
/// Empty where a figure is nan or no image was taken for another class.
[[nodiscard]] std::string classes_csv(const Confusion& confusion);
/// What confusion_csv wrote. Error{data} says what is wrong with the text of the file `name`.
[[nodiscard]] Confusion parse_confusion(std::string_view csv, const std::string& name);

}  // namespace dstrain::report
