#pragma once

#include <cstdio>  // for jpeglib.h
// In this order.
#include <jpeglib.h>

#include <csetjmp>
#include <cstring>

namespace dstrain {

/// What libjpeg says, without its text on the terminal and its exit().
struct JpegErrors {
  jpeg_error_mgr manager;  ///< first: libjpeg hands out its address
  std::jmp_buf jump;
  bool lost_pixels;  ///< a warning other than of bytes between segments
  char text[JMSG_LENGTH_MAX];

  jpeg_error_mgr* start() {
    jpeg_std_error(&manager);
    manager.error_exit = [](j_common_ptr jpeg) {
      JpegErrors& errors = of(jpeg);
      jpeg->err->format_message(jpeg, errors.text);
      std::longjmp(errors.jump, 1);
    };
    manager.emit_message = [](j_common_ptr jpeg, int level) {
      JpegErrors& errors = of(jpeg);
      if (level >= 0 || errors.lost_pixels) return;
      jpeg->err->format_message(jpeg, errors.text);
      // Bytes between segments harm nothing and are common in photo collections; any other warning
      // means lost pixels.
      errors.lost_pixels = std::strstr(errors.text, "extraneous bytes") == nullptr;
    };
    lost_pixels = false;
    text[0] = '\0';
    return &manager;
  }
  static JpegErrors& of(j_common_ptr jpeg) { return *reinterpret_cast<JpegErrors*>(jpeg->err); }

  /// Calls libjpeg; false where it gave up. `call` must own nothing: it may be left by a jump.
  template <class Call>
  [[nodiscard, gnu::noinline]] bool run(const Call& call) {
    if (setjmp(jump) != 0) return false;
    call();
    return true;
  }
};

}  // namespace dstrain
