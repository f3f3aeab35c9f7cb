# Toolchain of the presets `aarch64` and `aarch64-engine`: Debian's cross compiler against that machine's libraries, which scripts/sysroot unpacks in
# DSTRAIN_SYSROOT. What is built runs under qemu where the build or ctest start it.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_SYSROOT "${DSTRAIN_SYSROOT}")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DSTRAIN_SYSROOT)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
foreach(kind LIBRARY INCLUDE PACKAGE)
  set(CMAKE_FIND_ROOT_PATH_MODE_${kind} ONLY)
endforeach()
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L "${DSTRAIN_SYSROOT}")

# nvcc of x86_64 compiles for aarch64 when the compiler of its host code does; only the folder of that machine's headers is missing there,
# and they are the same. What CMake's checks link lies in that machine's wheels.
set(CMAKE_CUDA_HOST_COMPILER aarch64-linux-gnu-g++)
if(DEFINED ENV{CUDACXX})
  execute_process(COMMAND $ENV{CUDACXX} --dryrun none.cu ERROR_VARIABLE dryrun OUTPUT_QUIET)
  string(REGEX MATCH "TOP=([^\n]+)" dryrun "${dryrun}")
  set(DSTRAIN_CUDA_HEADERS "${CMAKE_MATCH_1}/include")
  set(CMAKE_CUDA_FLAGS_INIT "-isystem ${DSTRAIN_CUDA_HEADERS} -isystem ${DSTRAIN_CUDA_HEADERS}/cccl -Xcompiler=--sysroot=${DSTRAIN_SYSROOT} -L$ENV{DSTRAIN_SITE_PACKAGES}/nvidia/cu13/lib")
endif()
