# Toolchain of the preset `package`: this machine's compiler against the headers and libraries of an old system, which scripts/sysroot
# makes in DSTRAIN_SYSROOT.
set(CMAKE_SYSROOT "${DSTRAIN_SYSROOT}")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DSTRAIN_SYSROOT)
set(DSTRAIN_OLD_GLIBC ON)
set(CMAKE_CUDA_FLAGS_INIT "-Xcompiler=--sysroot=${DSTRAIN_SYSROOT}")
# Its libc.so and libstdc++.so name a shared library and the archive with what that lacks, which each of our libraries keeps for itself.
# What other shared libraries ask of newer systems is not known there.
set(old_glibc_link "--sysroot=${DSTRAIN_SYSROOT} -B${DSTRAIN_SYSROOT}/usr/lib/x86_64-linux-gnu -L${DSTRAIN_SYSROOT}/usr/lib/x86_64-linux-gnu -Wl,--exclude-libs,libstdc++.a:libdstrain_shim.a:libc_nonshared.a:libpng.a:libpng16.a:libjpeg.a:libwebp.a:libpcre2-8.a:libutf8proc.a:libyaml-cpp.a -Wl,--allow-shlib-undefined")
set(CMAKE_EXE_LINKER_FLAGS_INIT "${old_glibc_link}")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "${old_glibc_link}")
