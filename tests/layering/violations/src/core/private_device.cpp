// Breaks a rule on purpose: tests/layering checks that check_includes.py sees it.
#include "device/tile/ops_sm80.h"
