#include "engine/data/resize_loops_body.h"

template struct dstrain::resize::Loops<dstrain::resize::Plain>;
