#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/printable.h"
#include "engine/report/document_writer.h"
#include "engine/report/words.h"

namespace dstrain::report {
namespace {

constexpr std::size_t kEvaluationsShown = 30;

/// What a column shows of an evaluation, where some evaluation of the run knows it.
struct Column {
  const char* title;
  const char* figure;  ///< in the JSON
  double EvaluationRow::*field;
  std::string (*words)(double);
};
constexpr Column kColumns[] = {
    {"epoch", "epoch", &EvaluationRow::epoch, number_words},
    {"training loss before", "training_loss", &EvaluationRow::training_loss, number_words},
    {"loss", "loss", &EvaluationRow::loss, number_words},
    {"accuracy", "accuracy", &EvaluationRow::accuracy, share_words},
    {"top 5", "top5", &EvaluationRow::top5, share_words},
    {"rewards/chosen", "rewards_chosen", &EvaluationRow::rewards_chosen, number_words},
    {"rewards/rejected", "rewards_rejected", &EvaluationRow::rewards_rejected, number_words},
    {"rewards/margins", "rewards_margins", &EvaluationRow::rewards_margins, number_words},
    {"logps/chosen", "logps_chosen", &EvaluationRow::logps_chosen, number_words},
    {"logps/rejected", "logps_rejected", &EvaluationRow::logps_rejected, number_words},
    {"loss, average", "ema_loss", &EvaluationRow::ema_loss, number_words},
    {"accuracy, average", "ema_accuracy", &EvaluationRow::ema_accuracy, share_words},
    {"exact match", "exact_match", &EvaluationRow::exact_match, share_words},
    {"F1", "f1", &EvaluationRow::f1, share_words},
    {"right answers", "right_answers", &EvaluationRow::right_answers, share_words},
    {"took", "seconds", &EvaluationRow::seconds, time_words},
    {"samples/s", "samples_per_s", &EvaluationRow::samples_per_s, rate_words},
};

Table evaluation_table(std::size_t run, const std::vector<EvaluationRow>& rows) {
  Table table = {.header = {"after step"}, .rows = {}};
  std::vector<const Column*> columns;
  for (const Column& column : kColumns) {
    const bool known = std::ranges::any_of(
        rows, [&](const EvaluationRow& row) { return std::isfinite(row.*column.field); });
    if (!known) continue;
    columns.push_back(&column);
    table.header.emplace_back(column.title);
  }
  for (std::size_t k = rows.size() - std::min(kEvaluationsShown, rows.size()); k < rows.size();
       ++k) {
    const std::string place = fmt::format("evaluations.{}.", k);
    std::vector<Cell> cells = {number_cell(run, place + "step", static_cast<double>(rows[k].step),
                                           fmt::to_string(rows[k].step))};
    for (const Column* column : columns) {
      const double value = rows[k].*column->field;
      cells.push_back(number_cell(run, place + column->figure, value, column->words(value)));
    }
    table.rows.push_back(std::move(cells));
  }
  return table;
}

/// Shares of the images of each class, in per cent.
std::string confusion_picture(const Confusion& confusion, const std::string& label) {
  HeatMap map = {.title = "Classes taken for others of " + label,
                 .description = "A row for each right class, a column for each predicted one",
                 .unit = "%",
                 .rows = confusion.names,
                 .columns = {},
                 .values = {}};
  for (const std::string& name : confusion.names) map.columns.push_back(shown(name, 24));
  const std::vector<ClassFigures> figures = class_figures(confusion);
  for (std::size_t right = 0; right < figures.size(); ++right) {
    std::vector<double>& row = map.values.emplace_back();
    for (std::size_t predicted = 0; predicted < figures.size(); ++predicted) {
      const std::int64_t count = confusion.count(right, predicted);
      row.push_back(count == 0 ? kUnknown
                               : 100 * static_cast<double>(count) /
                                     static_cast<double>(figures[right].images));
    }
  }
  return draw_heat_map(map);
}

void write_confusion(const Writer& w, Section& section, std::size_t run) {
  constexpr std::size_t kMaxDrawn = 100, kNameBytes = 40;
  const RunFigures& figures = w.report.runs[run];
  const Confusion& confusion = *figures.data.confusion;
  if (w.pictures && confusion.classes() <= kMaxDrawn) {
    section.blocks.push_back(
        Paragraph{"Right class by row, predicted class by column, in the order of the labels:"});
    w.picture(section, confusion_picture(confusion, figures.label));
  }
  const std::vector<ConfusedPair> pairs = most_confused(confusion, kConfusedShown);
  if (pairs.empty()) return;
  Table table = {.header = {"class", "taken for", "images"}, .rows = {}};
  for (std::size_t k = 0; k < pairs.size(); ++k) {
    table.rows.push_back(
        {{shown(confusion.names[pairs[k].right], kNameBytes)},
         {shown(confusion.names[pairs[k].predicted], kNameBytes)},
         number_cell(run, fmt::format("confused.{}.images", k), static_cast<double>(pairs[k].count),
                     fmt::to_string(pairs[k].count))});
  }
  section.blocks.push_back(std::move(table));
  section.blocks.push_back(
      Paragraph{"The pairs of classes that were confused most often, of the last evaluation or "
                "that of run.best; confusion.csv and classes.csv of the run have all."});
}

}  // namespace

void write_evaluations(Writer& w) {
  for (std::size_t i = 0; i < w.report.runs.size(); ++i) {
    const RunFigures& run = w.report.runs[i];
    const std::vector<EvaluationRow>& rows = run.data.evaluations;
    if (rows.empty()) continue;
    Section& section =
        w.section(w.report.runs.size() == 1 ? "Evaluations" : "Evaluations: " + run.label, i > 0);
    section.blocks.push_back(evaluation_table(i, rows));
    std::string what =
        "On the test split. Training loss before: mean of the steps since the last "
        "evaluation.";
    const bool average = std::ranges::any_of(
        rows, [](const EvaluationRow& row) { return std::isfinite(row.ema_loss); });
    if (average) what += " Average: of the weights.";
    if (rows.size() > kEvaluationsShown)
      what += fmt::format(" The last {} of {}; --json has all.", kEvaluationsShown, rows.size());
    section.blocks.push_back(Paragraph{std::move(what)});
    if (run.data.confusion) write_confusion(w, section, i);
  }
}

}  // namespace dstrain::report
