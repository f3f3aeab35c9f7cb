#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/data/dataset.h"
#include "engine/data/images/image_decode.h"

namespace dstrain {
class PackSource;
class TarFile;
}  // namespace dstrain

/// The formats behind open_images(), one .cpp each. All throw Error{data} that names file and
/// record.
namespace dstrain::formats {

/// A format of images: a file of this folder that defines it, and a row of dataset.cpp.
struct ImageFormat {
  DatasetName name;
  /// `progress` may be null.
  std::unique_ptr<ImageDataset> (*open)(const DataConfig& data, Split split, int image_size,
                                        std::int64_t seed, ProgressSink* progress);
  /// Shape of the stored images.
  ImageShape (*shape)(const DataConfig& data, int image_size);
  /// DatasetFacts but for the shape; also where the files are absent.
  DatasetFacts (*facts)(const DataConfig& data);
  /// Whether what data.path holds is packed without data.pack, too; null: never.
  bool (*packed)(const DataConfig& data) = nullptr;
};

/// Handwritten digits, 8 x 8 grey: those in the binary when `path` is empty, else a file in the
/// same format.
extern const ImageFormat kDigits;
/// CIFAR-10 or CIFAR-100 in a folder: the binary version, memory-mapped, the python version or
/// parquet. https://www.cs.toronto.edu/~kriz/cifar.html
extern const ImageFormat kCifar10, kCifar100;
/// Files in a folder per class.
extern const ImageFormat kImageFolder;
extern const ImageFormat kFood101;
/// Clips: folders of frames in a folder per class.
extern const ImageFormat kFrames;
/// Members of tar files. https://github.com/webdataset/webdataset
extern const ImageFormat kWebDataset;
/// Noise that costs no decoding; a pure function of (seed, split, index).
extern const ImageFormat kRandomImages;

/// data.path, a folder. Error{usage} or Error{data} says that it must name `what`.
[[nodiscard]] std::filesystem::path required_folder(const DataConfig& data, const char* what);
/// Samples of a split of random data.
[[nodiscard]] std::int64_t random_size(const DataConfig& data, Split split);

/// Files among the images that are of no format which is read, by the ends of their names.
struct OtherFiles {
  std::map<std::string, std::int64_t> by_extension = {};
  std::string first = {};

  void add(const std::filesystem::path& file);
  void add(const OtherFiles& more);
  /// "3 .bmp, 1 without extension"; empty where there are none.
  [[nodiscard]] std::string describe() const;
};

/// Labelled image files, found but not yet read.
struct ImageList {
  struct Item {
    std::string file;  ///< relative to `root`; of a clip, its folder
    int label;
    std::vector<std::string> frames = {};  ///< of a clip: its images, relative to `root`
    std::int32_t archive = -1;             ///< one of `archives`, in which `file` is a member
    std::int64_t offset = 0, bytes = 0;    ///< of the member
  };
  std::filesystem::path root = {};
  int classes = 0;
  std::vector<Item> items = {};
  int frames = 1;                             ///< images of an item
  std::vector<std::string> class_names = {};  ///< by label
  OtherFiles others = {};
  std::shared_ptr<const std::vector<TarFile>> archives = {};

  /// The file that holds one of its images.
  [[nodiscard]] std::filesystem::path path(const Item& item, int frame) const;
  /// What messages call the image.
  [[nodiscard]] std::string name(const Item& item, int frame) const;
  /// The image as it is stored. Error{data} names what cannot be read.
  [[nodiscard]] std::string read(const Item& item, int frame) const;
  /// One of its images; its file goes into `file` where that is wanted.
  [[nodiscard]] ImagePart decode(const Item& item, int frame, const DecodeRequest& request,
                                 std::string* file = nullptr) const;
};
/// Decodes each file when it is read, RGB, and resizes it as data.resize says: to squares for
/// training, to the model's size for evaluation; with data.pack from the packed file. A damaged
/// file is handled as data.bad_record says. `source`: the images are its, and always packed; the
/// list has no items then.
[[nodiscard]] std::unique_ptr<ImageDataset> open_image_files(ImageList list, const DataConfig& data,
                                                             Split split, int image_size,
                                                             ProgressSink* progress,
                                                             PackSource* source = nullptr);
/// Shape of the squares that open_image_files() makes.
[[nodiscard]] ImageShape square_shape(const DataConfig& data, int image_size);
/// What the list of the training files says; nothing where data.path is no folder.
[[nodiscard]] DatasetFacts facts_of_files(const DataConfig& data,
                                          ImageList (*list)(const std::filesystem::path&, Split));

}  // namespace dstrain::formats
