# dstrain_layer(NAME SOURCES ... [USES layer ...] [LIBRARIES target ...]) declares one layer of the engine as a static
# library dstrain_<name> and refuses a link to a layer that does not stand before it in DSTRAIN_LAYERS.
# Needs: Unity.cmake.
set(DSTRAIN_LAYERS base hub recipe import mesh program trace report bench
    launcher_base launcher_protocol launcher_hosts launcher_transport launcher_hang launcher_doctor launcher_job
    store weights chat tokenizer text checkpoint metrics samples device comm kernels collectives data draft nn models infer train cmd)

# Layers that no step, no loader and no long reading waits for: -O1 compiles them a quarter faster.
set(DSTRAIN_QUICK_LAYERS hub recipe import bench draft launcher_base launcher_protocol launcher_hosts launcher_transport
    launcher_hang launcher_doctor launcher_job)
function(dstrain_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

# Compiles each header of this folder by itself, in a target TARGET_headers.
function(dstrain_headers_alone target)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR}/*.h)
  set(files "")
  foreach(header ${headers})
    string(MAKE_C_IDENTIFIER ${header} file)
    file(GENERATE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/headers/${file}.cpp CONTENT "#include \"${header}\"\n")
    list(APPEND files ${CMAKE_CURRENT_BINARY_DIR}/headers/${file}.cpp)
  endforeach()
  if(files)
    add_library(${target}_headers OBJECT ${files})
    target_link_libraries(${target}_headers PRIVATE ${target} dstrain_options)
  endif()
endfunction()

function(dstrain_layer name)
  cmake_parse_arguments(LAYER "" "" "SOURCES;USES;LIBRARIES" ${ARGN})
  list(FIND DSTRAIN_LAYERS ${name} position)
  if(position EQUAL -1)
    message(FATAL_ERROR "layer '${name}' is not in DSTRAIN_LAYERS (scripts/cmake/Layers.cmake)")
  endif()
  add_library(dstrain_${name} STATIC ${LAYER_SOURCES})
  dstrain_unity(dstrain_${name})
  if(name IN_LIST DSTRAIN_QUICK_LAYERS)
    dstrain_compile_quickly(dstrain_${name})
  endif()
  if(DSTRAIN_ALONE)
    dstrain_headers_alone(dstrain_${name})
  endif()
  target_link_libraries(dstrain_${name} PRIVATE dstrain_options PUBLIC ${LAYER_LIBRARIES})
  foreach(used ${LAYER_USES})
    list(FIND DSTRAIN_LAYERS ${used} used_position)
    if(used_position EQUAL -1 OR NOT used_position LESS position)
      message(FATAL_ERROR "layer '${name}' may not use '${used}': only layers before it in ${DSTRAIN_LAYERS}")
    endif()
    target_link_libraries(dstrain_${name} PUBLIC dstrain_${used})
  endforeach()
endfunction()
