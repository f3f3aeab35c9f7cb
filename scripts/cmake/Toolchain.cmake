# Compilers, flags and sanitizers shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CUDA_STANDARD 20)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  # CMake 3.25 does not know that nvcc 12 and later speak C++20.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(DSTRAIN_PYARROW_VERSION 26.0.1)  # of scripts/setup
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
if(DSTRAIN_ALONE)  # the objects hold no code, so that other builds must not find them: they have a namespace of their own
  set(check_only ${CMAKE_SOURCE_DIR}/scripts/cmake/check_only)
  if(CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_PREFIX=${check_only} CCACHE_NAMESPACE=alone ${CCACHE})
  else()
    set(CMAKE_CXX_COMPILER_LAUNCHER ${check_only})
  endif()
endif()

if(DSTRAIN_OLD_GLIBC)  # packages name this system's headers, which links in the other root replace
  list(APPEND CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES /usr/include /usr/include/x86_64-linux-gnu)
  list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES /usr/include /usr/include/x86_64-linux-gnu)
endif()

add_library(dstrain_options INTERFACE)
target_compile_options(dstrain_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror>
  $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-Wno-deprecated-declarations>  # std::stable_sort of libstdc++ 12 under clang 19
  $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings -Xcompiler=-Wall,-Wextra --expt-relaxed-constexpr>)
# g++ 12 takes std::string's operator+ for an overlapping copy when it optimises (GCC bug 105651).
target_compile_options(dstrain_options INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
# g++ 13 takes what a function returns of its argument for a reference to a temporary.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
  target_compile_options(dstrain_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-reference>)
endif()
# Other processors than x86-64 join a product and a sum by default, and give other digits.
target_compile_options(dstrain_options INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>>>:-ffp-contract=off>)
target_include_directories(dstrain_options INTERFACE ${CMAKE_SOURCE_DIR})

if(DSTRAIN_SANITIZE STREQUAL "address")
  # g++ 12 warns of <regex> in Catch2 when it is instrumented.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined>
    $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=undefined> $<$<COMPILE_LANGUAGE:CXX>:-Wno-maybe-uninitialized>)
  add_link_options(-fsanitize=address,undefined)
elseif(DSTRAIN_SANITIZE STREQUAL "thread")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=thread>)
  add_link_options(-fsanitize=thread)
elseif(DSTRAIN_SANITIZE)
  message(FATAL_ERROR "DSTRAIN_SANITIZE=${DSTRAIN_SANITIZE}: use address or thread")
endif()
