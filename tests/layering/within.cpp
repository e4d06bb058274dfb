// A shared library of somebody else's that has the static Tilewise within.
#include "tilewise/attention.hpp"
#include "tilewise/tilewise.h"

extern "C" const char* uses_tilewise() {
  return tilewise::version().empty() ? tilewise_last_error() : tilewise_version();
}
