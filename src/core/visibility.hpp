// TILEWISE_INTERNAL marks what Python's module and the command take from the shared library beside its public
// interface: exported, and yet promised to nobody. Only what was built with the library may use it.
#pragma once

#include "tilewise/export.h"

#define TILEWISE_INTERNAL TILEWISE_EXPORT
