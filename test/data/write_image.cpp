#include "test/data/write_image.h"

#include <png.h>

#include <cstdio>
// In this order.
#include <jpeglib.h>
#include <turbojpeg.h>
#include <webp/encode.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <stdexcept>

namespace dstrain::test {
namespace {

std::string compress(const std::vector<std::uint8_t>& pixels, int width, int height, int format,
                     int subsampling, int quality) {
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const tjhandle handle = tjInitCompress();
  const int status = tjCompress2(handle, pixels.data(), width, 0, height, format, &bytes, &size,
                                 subsampling, quality, 0);
  const std::string content(reinterpret_cast<char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(handle);
  if (status != 0) throw std::runtime_error("cannot write JPEG");
  return content;
}

std::string write_png(const std::vector<std::uint8_t>& pixels, int width, int height,
                      png_uint_32 format) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(width);
  png.height = static_cast<png_uint_32>(height);
  png.format = format;
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&png, nullptr, &size, 0, pixels.data(), 0, nullptr);
  std::string content(size, '\0');
  if (png_image_write_to_memory(&png, content.data(), &size, 0, pixels.data(), 0, nullptr) == 0) {
    throw std::runtime_error("cannot write PNG");
  }
  content.resize(size);
  return content;
}

}  // namespace

RgbImage make_gradient(int width, int height) {
  RgbImage image{width, height, {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      image.pixels.push_back(static_cast<std::uint8_t>(x * 255 / std::max(1, width - 1)));
      image.pixels.push_back(static_cast<std::uint8_t>(y * 255 / std::max(1, height - 1)));
      image.pixels.push_back(100);
    }
  }
  return image;
}

std::string encode_jpeg(const RgbImage& image, int quality) {
  return compress(image.pixels, image.width, image.height, TJPF_RGB, TJSAMP_444, quality);
}

std::string encode_jpeg(const RgbImage& image, const JpegForm& form) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &bytes, &size);
  jpeg.image_width = static_cast<JDIMENSION>(image.width);
  jpeg.image_height = static_cast<JDIMENSION>(image.height);
  jpeg.input_components = 3;
  jpeg.in_color_space = JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, 90, TRUE);
  jpeg.comp_info[0].h_samp_factor = form.horizontal;
  jpeg.comp_info[0].v_samp_factor = form.vertical;
  if (form.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  while (jpeg.next_scanline < jpeg.image_height) {
    auto* row =
        const_cast<JSAMPROW>(image.pixels.data()) +
        static_cast<std::size_t>(jpeg.next_scanline) * static_cast<std::size_t>(image.width) * 3;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  jpeg_destroy_compress(&jpeg);
  const std::string content(reinterpret_cast<char*>(bytes), size);
  std::free(bytes);
  return content;
}

std::string encode_grey_jpeg(const RgbImage& image) {
  return compress(image.pixels, image.width, image.height, TJPF_RGB, TJSAMP_GRAY, 95);
}

std::string encode_cmyk_jpeg(const RgbImage& image) {
  std::vector<std::uint8_t> cmyk;  // Adobe's inverted values with no black: the colour itself
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
    cmyk.insert(cmyk.end(), {image.pixels[i], image.pixels[i + 1], image.pixels[i + 2], 255});
  }
  return compress(cmyk, image.width, image.height, TJPF_CMYK, TJSAMP_444, 95);
}

std::string encode_png(const RgbImage& image) {
  return write_png(image.pixels, image.width, image.height, PNG_FORMAT_RGB);
}

std::string encode_transparent_png(const RgbImage& image) {
  std::vector<std::uint8_t> rgba;
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
    rgba.insert(rgba.end(), {image.pixels[i], image.pixels[i + 1], image.pixels[i + 2], 0});
  }
  return write_png(rgba, image.width, image.height, PNG_FORMAT_RGBA);
}

std::string encode_webp(const RgbImage& image, bool lossless) {
  std::uint8_t* bytes = nullptr;
  const std::uint8_t* pixels = image.pixels.data();
  const int width = image.width, height = image.height, stride = 3 * width;
  const std::size_t size = lossless ? WebPEncodeLosslessRGB(pixels, width, height, stride, &bytes)
                                    : WebPEncodeRGB(pixels, width, height, stride, 80, &bytes);
  std::string content(reinterpret_cast<char*>(bytes), size);
  WebPFree(bytes);
  return content;
}

std::string encode_deep_png(const RgbImage& image) {
  std::string content;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &content,
      [](png_structp file, png_bytep bytes, png_size_t size) {
        static_cast<std::string*>(png_get_io_ptr(file))
            ->append(reinterpret_cast<char*>(bytes), size);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(image.width),
               static_cast<png_uint_32>(image.height), 16, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  const std::size_t row_values = static_cast<std::size_t>(image.width) * 3;
  for (std::size_t y = 0; y < static_cast<std::size_t>(image.height); ++y) {
    std::vector<std::uint8_t> row;
    for (std::size_t i = 0; i < row_values; ++i)
      row.insert(row.end(), 2, image.pixels[y * row_values + i]);
    png_write_row(png, row.data());
  }
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return content;
}

void write_file(const std::filesystem::path& path, std::string_view content) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace dstrain::test
