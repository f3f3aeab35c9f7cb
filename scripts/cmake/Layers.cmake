# dstrain_layer(NAME SOURCES ... [USES layer ...] [LIBRARIES target ...]) declares one layer of the engine as a static
# library dstrain_<name> and refuses a link to a layer that does not stand before it in DSTRAIN_LAYERS.
# Needs: Unity.cmake.
set(DSTRAIN_LAYERS base recipe import mesh program trace report bench
    launcher_base launcher_protocol launcher_hosts launcher_transport launcher_hang launcher_doctor launcher_job
    store weights tokenizer text checkpoint metrics samples device comm kernels collectives data nn models train cmd)

function(dstrain_layer name)
  cmake_parse_arguments(LAYER "" "" "SOURCES;USES;LIBRARIES" ${ARGN})
  list(FIND DSTRAIN_LAYERS ${name} position)
  if(position EQUAL -1)
    message(FATAL_ERROR "layer '${name}' is not in DSTRAIN_LAYERS (scripts/cmake/Layers.cmake)")
  endif()
  add_library(dstrain_${name} STATIC ${LAYER_SOURCES})
  dstrain_unity(dstrain_${name})
  target_link_libraries(dstrain_${name} PRIVATE dstrain_options PUBLIC ${LAYER_LIBRARIES})
  foreach(used ${LAYER_USES})
    list(FIND DSTRAIN_LAYERS ${used} used_position)
    if(used_position EQUAL -1 OR NOT used_position LESS position)
      message(FATAL_ERROR "layer '${name}' may not use '${used}': only layers before it in ${DSTRAIN_LAYERS}")
    endif()
    target_link_libraries(dstrain_${name} PUBLIC dstrain_${used})
  endforeach()
endfunction()
