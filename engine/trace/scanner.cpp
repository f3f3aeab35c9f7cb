#include "engine/trace/scanner.h"
