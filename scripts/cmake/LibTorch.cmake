# LibTorch, NCCL and the CUDA runtime of the `torch` wheel as plain imported targets; its own CMake package is slow.
# DSTRAIN_SITE_PACKAGES is the folder that holds `torch` and `nvidia`; scripts/setup passes it. What a build asks of a version of torch
# stands here alone: the code is the same for 2.11.0 and 2.15.0 and asks for none.
set(DSTRAIN_SITE_PACKAGES "" CACHE PATH "site-packages folder with the torch wheel")
if(NOT EXISTS ${DSTRAIN_SITE_PACKAGES}/torch/lib/libtorch_cpu.so)
  message(FATAL_ERROR "no LibTorch under DSTRAIN_SITE_PACKAGES='${DSTRAIN_SITE_PACKAGES}'; run scripts/setup, which installs it")
endif()
if(NOT EXISTS ${DSTRAIN_SITE_PACKAGES}/include/cudnn_frontend.h)
  message(FATAL_ERROR "no cudnn_frontend.h under DSTRAIN_SITE_PACKAGES='${DSTRAIN_SITE_PACKAGES}/include'; run scripts/setup, which installs it")
endif()
if(NOT EXISTS ${DSTRAIN_SITE_PACKAGES}/nvidia/cu13/include/nvjpeg.h)
  message(FATAL_ERROR "no nvjpeg.h under DSTRAIN_SITE_PACKAGES='${DSTRAIN_SITE_PACKAGES}/nvidia/cu13/include'; run scripts/setup, which installs it")
endif()
set(torch_dir ${DSTRAIN_SITE_PACKAGES}/torch)
set(nvidia_dir ${DSTRAIN_SITE_PACKAGES}/nvidia)

find_package(Threads REQUIRED)
add_library(dstrain_torch INTERFACE)
# Searched last: the wheel brings headers of its own fmt, which must not stand before the one that we link.
target_compile_options(dstrain_torch INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-idirafter${torch_dir}/include>
  $<$<COMPILE_LANGUAGE:CXX>:-idirafter${torch_dir}/include/torch/csrc/api/include>)
# The CUDA compiler refuses headers of another toolkit than its own.
target_include_directories(dstrain_torch SYSTEM INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:${nvidia_dir}/cu13/include> $<$<COMPILE_LANGUAGE:CXX>:${DSTRAIN_CUDA_HEADERS}> ${nvidia_dir}/nccl/include ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
target_compile_definitions(dstrain_torch INTERFACE USE_C10D_GLOO USE_CUDA)
# The CUDA libraries register themselves when loaded, so the linker must keep them although no symbol is named.
# libtorch exports parts of std::filesystem of an older libstdc++: ours must be found first.
target_link_libraries(dstrain_torch INTERFACE
  -Wl,--no-as-needed -lstdc++ ${torch_dir}/lib/libtorch.so ${torch_dir}/lib/libtorch_cpu.so ${torch_dir}/lib/libc10.so
  ${torch_dir}/lib/libtorch_cuda.so ${torch_dir}/lib/libc10_cuda.so
  ${nvidia_dir}/nccl/lib/libnccl.so.2 ${nvidia_dir}/cu13/lib/libcudart.so.13 ${nvidia_dir}/cu13/lib/libcublas.so.13
  ${nvidia_dir}/cu13/lib/libcublasLt.so.13
  -Wl,--as-needed Threads::Threads)

# cuDNN and the headers of its front end, which name the runtime compiler, for the files that include them.
set(DSTRAIN_CUDNN_LIBRARIES ${nvidia_dir}/cudnn/lib/libcudnn.so.9 ${nvidia_dir}/cu13/lib/libnvrtc.so.13)
set(DSTRAIN_CUDNN_OPTIONS -isystem${nvidia_dir}/cudnn/include -isystem${DSTRAIN_SITE_PACKAGES}/include -DCUDNN_FRONTEND_SKIP_JSON_LIB)

# What the engine asks of the wheel that it finds where it runs (engine/base/torch_folder.h), and where that is for the build tree.
file(STRINGS ${torch_dir}/version.py version_lines REGEX "^(__version__|cuda)")
string(REGEX MATCH "__version__ = '([0-9.]+)" version_match "${version_lines}")
set(DSTRAIN_TORCH_VERSION ${CMAKE_MATCH_1})
string(REGEX MATCH "cuda[^=]*= '([0-9.]+)" version_match "${version_lines}")
set(DSTRAIN_TORCH_CUDA ${CMAKE_MATCH_1})
file(WRITE ${CMAKE_BINARY_DIR}/lib/dstrain/site-packages "${DSTRAIN_SITE_PACKAGES}\n")

# For programs of tests, which link LibTorch as they are.
set(DSTRAIN_TORCH_RPATH ${torch_dir}/lib ${nvidia_dir}/nccl/lib ${nvidia_dir}/cu13/lib ${nvidia_dir}/cudnn/lib
    ${nvidia_dir}/cusparselt/lib ${nvidia_dir}/nvshmem/lib)
set(CMAKE_BUILD_RPATH ${DSTRAIN_TORCH_RPATH})
# Bundled libraries lie beside what needs them. RPATH, not RUNPATH: it also serves what those libraries need, and comes before
# LD_LIBRARY_PATH.
set(CMAKE_INSTALL_RPATH "$ORIGIN")
add_link_options(-Wl,--disable-new-dtags)
if(CMAKE_CROSSCOMPILING)  # the other machine's linker takes no $ORIGIN; nothing runs here, so that it says what no library has
  list(JOIN DSTRAIN_TORCH_RPATH ":" torch_folders)
  add_link_options(-Wl,-rpath-link,${torch_folders} -Wl,-z,defs -Wl,--no-allow-shlib-undefined)
endif()
# The CUDA runtime is the wheel's, linked by path: it has no unversioned name that -lcudart would find.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
