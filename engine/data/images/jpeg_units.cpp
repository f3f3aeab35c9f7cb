#include "engine/data/images/jpeg_units.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <nvjpeg.h>

#include <type_traits>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/torch_folder.h"
#include "engine/data/images/jpeg_decode.h"
#include "engine/data/images/part_resize.h"

namespace dstrain {
namespace {

constexpr const char* kLibrary = "nvidia/cu13/lib/libnvjpeg.so.13";  ///< beside LibTorch
constexpr const char* kCpuHint = "use data.decode: cpu";
/// Decoded at once, so that a lane holds 96 MiB at most.
constexpr std::int64_t kLanePixels = std::int64_t{32} << 20;

}  // namespace

/// Functions of nvJPEG.
struct JpegUnits::Library {
  decltype(&nvjpegCreateEx) create = nullptr;
  decltype(&nvjpegDestroy) destroy = nullptr;
  decltype(&nvjpegJpegStateCreate) create_state = nullptr;
  decltype(&nvjpegJpegStateDestroy) destroy_state = nullptr;
  decltype(&nvjpegDecodeBatchedInitialize) initialize = nullptr;
  decltype(&nvjpegDecodeBatched) decode = nullptr;

  static const Library& get() {
    static const Library library;  // an Error leaves it for the next call
    return library;
  }

 private:
  Library() {
    const std::filesystem::path library = beside_torch(kLibrary);
    void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      throw Error(ErrorKind::usage,
                  fmt::format("data.decode: gpu needs {}, which cannot be loaded: {}",
                              library.filename().string(), ::dlerror()),
                  "install nvidia-nvjpeg beside torch (scripts/setup, or pip), or use data.decode: cpu");
    }
    const auto find = [&](const char* name, auto& function) {
      // The cast is how POSIX hands out functions.
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
      DSTRAIN_CHECK(function != nullptr, fmt::format("{} lacks {}", kLibrary, name));
    };
    find("nvjpegCreateEx", create);
    find("nvjpegDestroy", destroy);
    find("nvjpegJpegStateCreate", create_state);
    find("nvjpegJpegStateDestroy", destroy_state);
    find("nvjpegDecodeBatchedInitialize", initialize);
    find("nvjpegDecodeBatched", decode);
  }
};

/// What one thread needs at a time.
struct JpegUnits::Lane {
  Lane(const Library& functions, nvjpegHandle_t handle) : library(functions) {
    check_units(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    // The thread sleeps while it waits.
    check_units(cudaEventCreateWithFlags(&done, cudaEventDisableTiming | cudaEventBlockingSync));
    DSTRAIN_CHECK(library.create_state(handle, &state) == NVJPEG_STATUS_SUCCESS,
                  "a state of nvJPEG");
  }
  ~Lane() {
    (void)library.destroy_state(state);
    (void)cudaEventDestroy(done);
    (void)cudaStreamDestroy(stream);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  bool run(nvjpegHandle_t handle, std::span<const UnitImage> images, Interpolation filter);
  /// Whole images, one behind the other; nothing where the units refuse one of them.
  [[nodiscard]] std::vector<const std::uint8_t*> decode(nvjpegHandle_t handle,
                                                        std::span<const UnitImage> images);

  const Library& library;
  cudaStream_t stream = nullptr;
  cudaEvent_t done = nullptr;
  nvjpegJpegState_t state = nullptr;
  std::size_t batch = 0;  ///< for which `state` is ready
  GrowingMemory whole{GrowingMemory::Where::device};
  PartResize resize;
};

std::vector<const std::uint8_t*> JpegUnits::Lane::decode(nvjpegHandle_t handle,
                                                         std::span<const UnitImage> images) {
  if (batch != images.size()) {
    batch = 0;
    if (library.initialize(handle, state, static_cast<int>(images.size()), /*max_cpu_threads=*/1,
                           NVJPEG_OUTPUT_RGBI) != NVJPEG_STATUS_SUCCESS)
      return {};
    batch = images.size();
  }
  std::size_t bytes = 0;
  for (const UnitImage& image : images) bytes += to_index(image.width) * to_index(image.height) * 3;
  std::uint8_t* to = whole.of(bytes);
  std::vector<const unsigned char*> files;
  std::vector<std::size_t> sizes;
  std::vector<nvjpegImage_t> outputs;
  std::vector<const std::uint8_t*> decoded;
  for (const UnitImage& image : images) {
    files.push_back(reinterpret_cast<const unsigned char*>(image.bytes.data()));
    sizes.push_back(image.bytes.size());
    nvjpegImage_t& output = outputs.emplace_back();
    output.channel[0] = to;
    output.pitch[0] = to_index(image.width) * 3;
    decoded.push_back(to);
    to += output.pitch[0] * to_index(image.height);
  }
  if (library.decode(handle, state, files.data(), sizes.data(), outputs.data(), stream) !=
      NVJPEG_STATUS_SUCCESS) {
    batch = 0;
    decoded.clear();
  }
  return decoded;
}

bool JpegUnits::Lane::run(nvjpegHandle_t handle, std::span<const UnitImage> images,
                          Interpolation filter) {
  const std::vector<const std::uint8_t*> decoded = decode(handle, images);
  std::vector<DevicePart> parts;
  for (std::size_t i = 0; i < decoded.size(); ++i) {
    const UnitImage& image = images[i];
    const std::int64_t pitch = std::int64_t{image.width} * 3;
    parts.push_back({.from = decoded[i] + image.window.top * pitch + image.window.left * 3,
                     .pitch = pitch,
                     .width = image.window.width,
                     .height = image.window.height,
                     .axes = image.axes,
                     .pixels = image.pixels});
  }
  if (!parts.empty()) resize.enqueue(parts, filter, stream);
  // Also where the units refused: nothing may write into what the next call decodes.
  check_units(cudaEventRecord(done, stream));
  check_units(cudaEventSynchronize(done));
  return !parts.empty();
}

JpegUnits::JpegUnits(c10::Device device, const Library& library)
    : device_(device), library_(library) {
  const c10::cuda::CUDAGuard guard(device_);
  const nvjpegStatus_t made =
      library_.create(NVJPEG_BACKEND_HARDWARE, nullptr, nullptr, 0, &handle_);
  if (made != NVJPEG_STATUS_SUCCESS) {
    throw Error(ErrorKind::usage,
                fmt::format("data.decode: gpu: this GPU has no JPEG units that nvJPEG can use "
                            "(status {})",
                            static_cast<int>(made)),
                kCpuHint);
  }
}

JpegUnits::~JpegUnits() {
  idle_.clear();
  (void)library_.destroy(handle_);
}

std::shared_ptr<JpegUnits> JpegUnits::open(c10::Device device, int lanes) {
  if (!device.is_cuda()) {
    throw Error(ErrorKind::usage, "data.decode: gpu: this rank runs on the CPU", kCpuHint);
  }
  std::shared_ptr<JpegUnits> units(new JpegUnits(device, Library::get()));
  // Before the first step, since kernels that are loaded while a rank waits for another one may
  // wait for it, too.
  constexpr int kSide = 64;
  const std::string file =
      encode_jpeg({kSide, kSide, std::vector<std::uint8_t>(kSide * kSide * 3, 128)}, 90);
  std::vector<std::uint8_t> pixels(kSide * kSide * 3);
  const UnitImage image = {.bytes = file,
                           .width = kSide,
                           .height = kSide,
                           .window = {0, 0, kSide, kSide},
                           .axes = part_axes(0, 0, kSide, kSide, kSide),
                           .pixels = pixels};
  const c10::cuda::CUDAGuard guard(device);
  for (int i = 0; i < lanes; ++i) {
    auto lane = std::make_unique<Lane>(units->library_, units->handle_);
    if (!lane->run(units->handle_, {&image, 1}, Interpolation::bilinear) || pixels[0] < 120 ||
        pixels[0] > 136) {
      throw Error(ErrorKind::usage, "data.decode: gpu: the JPEG units of this GPU do not decode",
                  kCpuHint);
    }
    units->idle_.push_back(std::move(lane));
  }
  return units;
}

/// A lane of the calling thread alone.
class JpegUnits::BorrowedLane {
 public:
  explicit BorrowedLane(JpegUnits& owner) : owner_(owner) {
    std::unique_lock lock(owner_.mutex_);
    owner_.returned_.wait(lock, [&] { return !owner_.idle_.empty(); });
    lane_ = std::move(owner_.idle_.back());
    owner_.idle_.pop_back();
  }
  ~BorrowedLane() {
    {
      const std::lock_guard lock(owner_.mutex_);
      owner_.idle_.push_back(std::move(lane_));
    }
    owner_.returned_.notify_one();
  }
  BorrowedLane(const BorrowedLane&) = delete;
  BorrowedLane& operator=(const BorrowedLane&) = delete;
  Lane* operator->() { return lane_.get(); }

 private:
  JpegUnits& owner_;
  std::unique_ptr<Lane> lane_;
};

bool JpegUnits::decode(std::span<const UnitImage> images, Interpolation filter) {
  if (images.empty()) return true;
  const c10::cuda::CUDAGuard guard(device_);
  // The training thread may be recording a graph.
  const c10::cuda::CUDAStreamCaptureModeGuard relaxed(cudaStreamCaptureModeRelaxed);
  BorrowedLane lane(*this);
  bool decoded = true;
  while (decoded && !images.empty()) {
    std::int64_t pixels = 0;
    std::size_t count = 0;
    for (const UnitImage& image : images) {
      pixels += std::int64_t{image.width} * image.height;
      if (count > 0 && pixels > kLanePixels) break;
      ++count;
    }
    decoded = lane->run(handle_, images.first(count), filter);
    images = images.subspan(count);
  }
  return decoded;
}

}  // namespace dstrain
