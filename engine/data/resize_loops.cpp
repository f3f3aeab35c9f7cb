#include "engine/data/resize_loops.h"

template struct dstrain::resize::Loops<dstrain::resize::Plain>;
