#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/hub/archives.h"
#include "engine/hub/repository.h"
#include "engine/recipe/datasets.h"

namespace dstrain::draft {

/// What a person calls data by; nothing has been looked at.
struct DataWord {
  std::string word = {};                  ///< as given
  std::filesystem::path path = {};        ///< a file or folder; empty: none is named
  std::optional<hub::HubName> hub = {};   ///< where it is
  const hub::Archive* archive = nullptr;  ///< cifar100 and food101, which `launch` brings
  bool digits = false;                    ///< those in the program
};
/// A file or folder, "hf://datasets/ORG/NAME", "ORG/NAME", or a name: cifar100, food101, squad,
/// metamathqa, digits. Error{usage} for what is none of these.
[[nodiscard]] DataWord read_data_word(const std::string& word);

/// Data as a recipe names it, and what is in it.
struct DataFacts {
  DatasetName name = DatasetName::images;  ///< data.name
  std::string path = {};                   ///< data.path; empty: it needs none
  std::string place = {};                  ///< where it lies here; empty: nowhere
  std::string label = {};                  ///< data.label
  std::string form = {};     ///< how the format was told: "train.jsonl has the field messages"
  std::int64_t samples = 0;  ///< of training; 0: not known
  bool about = false;        ///< `samples` is an estimate
  bool evaluated = true;     ///< there are samples for evaluation, or a share is held out
  bool own_test = false;     ///< they are files of their own
  // Images.
  int classes = 0;
  std::vector<std::string> class_names = {};
  int channels = 3;
  bool pairs = false;   ///< of answers, a chosen and a rejected one
  bool marked = false;  ///< tokens that say which of them are trained
  // JSON Lines of any fields.
  std::vector<std::string> fields = {};    ///< texts, numbers and truth values of a record
  std::string question = {}, answer = {};  ///< two of them; no answer: which is not clear
  std::string prompt = {}, response = {};  ///< templates with them

  [[nodiscard]] bool is_text() const { return dataset_row(name).modality == Modality::text; }
};

/// The keys of a recipe that readers of data are asked by.
[[nodiscard]] DataConfig config_of(DatasetName name, const std::string& path,
                                   const std::string& label = {});

/// What data is looked at for.
struct LookOptions {
  bool text = false;       ///< the model takes text: in tars with both, texts come before images
  bool clips = false;      ///< the model takes clips of frames
  std::string label = {};  ///< data.label
};

/// Tells the format of a file or folder by what is in it. Error{data} names what was looked for
/// and what is there, or what is wrong with the files of the form that it has.
[[nodiscard]] DataFacts look_at_data(const std::filesystem::path& path, const LookOptions& options);
/// The same of data that is not here yet, or in the program.
[[nodiscard]] DataFacts facts_of_archive(const hub::Archive& archive,
                                         const std::filesystem::path& folder);
[[nodiscard]] DataFacts facts_of_digits();

/// Which fields of a record are question (empty: none) and answer, and the templates with them.
/// Error{usage} for a field that the records do not have.
void name_fields(DataFacts& facts, const std::string& question, const std::string& answer);

// The parts of look_at_data().

/// Nothing where a folder or file has no form of images.
[[nodiscard]] std::optional<DataFacts> images_in(const std::filesystem::path& path,
                                                 const LookOptions& options);
/// Nothing where `path` has no form of text. Error{data} for a file of text in no form.
[[nodiscard]] std::optional<DataFacts> text_in(const std::filesystem::path& path);

}  // namespace dstrain::draft
