#include "engine/data/images/resize_loops_body.h"

template struct dstrain::resize::Loops<dstrain::resize::Plain>;
