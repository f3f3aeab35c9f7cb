# Names the commit that is built, at each build, in a file that changes with it alone: cmake -DSOURCE=DIR -DIN=FILE -DOUT=FILE -P version.cmake
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=12 HEAD OUTPUT_VARIABLE DSTRAIN_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
configure_file(${IN} ${OUT} @ONLY)
