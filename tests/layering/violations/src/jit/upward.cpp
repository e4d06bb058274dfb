// Breaks a rule on purpose: what lies above run-time compilation is not for it to know.
#include "backends/cpu/cpu_backend.hpp"
