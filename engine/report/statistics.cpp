#include "engine/report/statistics.h"
