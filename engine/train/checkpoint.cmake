# Checkpoints, metrics and the run directory: the part of `train` that needs no torch header.
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)

add_library(dstrain_checkpoint STATIC
  checkpoint_file.cpp checkpoint_list.cpp checkpoint_manifest.cpp checkpoint_reader.cpp checkpoint_saver.cpp
  metrics.cpp run_directory.cpp tensorboard.cpp)
dstrain_unity(dstrain_checkpoint)
target_include_directories(dstrain_checkpoint SYSTEM PRIVATE ${XXHASH_INCLUDE_DIR})
target_link_libraries(dstrain_checkpoint
  PRIVATE dstrain_options nlohmann_json::nlohmann_json
  PUBLIC dstrain_base dstrain_mesh dstrain_models fmt::fmt)
