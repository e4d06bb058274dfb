// Breaks two rules on purpose: tests/layering checks that check_includes.py sees it.
#include "device/attention/config.h"
