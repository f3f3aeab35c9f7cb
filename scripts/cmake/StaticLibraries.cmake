# bin/dstrain starts on machines where none of our libraries is installed: small ones are linked into it, and into the engine, where the
# distribution has them as archives. Their headers and options stay those of the shared ones.
function(dstrain_link_archive target archive)
  if(NOT TARGET ${target})
    return()
  endif()
  find_library(found_${archive} NAMES ${archive} NO_CACHE)
  if(found_${archive})
    get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
    foreach(configuration ${configurations})
      set_target_properties(${target} PROPERTIES IMPORTED_LOCATION_${configuration} ${found_${archive}})
    endforeach()
    set_target_properties(${target} PROPERTIES IMPORTED_LOCATION ${found_${archive}})
  endif()
endfunction()

find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(ZLIB REQUIRED)
dstrain_link_archive(OpenSSL::Crypto libcrypto.a)
dstrain_link_archive(OpenSSL::SSL libssl.a)
dstrain_link_archive(ZLIB::ZLIB libz.a)
# Not for a shared library, as its code is not.
find_library(DSTRAIN_YAML_ARCHIVE NAMES libyaml-cpp.a NO_CACHE)
find_library(zstd_archive NAMES libzstd.a NO_CACHE)
if(zstd_archive)
  set(ZSTD_LIBRARY ${zstd_archive})
endif()

# Stacks of ranks that hang (launcher/hang), with what this archive needs; only a program can take it.
set(DSTRAIN_LIBDW "")
foreach(name dw elf lzma bz2)
  find_library(${name}_archive NAMES lib${name}.a NO_CACHE)
  list(APPEND DSTRAIN_LIBDW ${${name}_archive})
endforeach()
if(DSTRAIN_LIBDW MATCHES "NOTFOUND")
  set(DSTRAIN_LIBDW "")
else()
  list(APPEND DSTRAIN_LIBDW ${ZSTD_LIBRARY} ZLIB::ZLIB)
endif()

# No distribution has fmt as an archive; its package has the sources among the headers.
find_package(fmt REQUIRED)
if(fmt_VERSION VERSION_GREATER_EQUAL 9 AND fmt_VERSION VERSION_LESS 10)
  add_library(dstrain_fmt STATIC ${CMAKE_SOURCE_DIR}/scripts/cmake/fmt.cpp)
  target_compile_definitions(dstrain_fmt PRIVATE FMT_SHARED)  # as the package's target says to all others
  get_target_property(configurations fmt::fmt IMPORTED_CONFIGURATIONS)
  foreach(configuration ${configurations})
    set_target_properties(fmt::fmt PROPERTIES IMPORTED_LOCATION_${configuration} ${CMAKE_BINARY_DIR}/libdstrain_fmt.a)
  endforeach()
  set_target_properties(dstrain_fmt PROPERTIES ARCHIVE_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  add_dependencies(fmt::fmt dstrain_fmt)
endif()

# What they export would stand before what LibTorch's libraries export.
add_link_options(-Wl,--exclude-libs,libcrypto.a:libssl.a:libz.a:libzstd.a:libdw.a:libelf.a:liblzma.a:libbz2.a)
