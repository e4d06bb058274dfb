// Breaks two rules on purpose: it speaks of queries and keys, and includes what is made of this folder.
#include "device/gemm/sm90/config.h"
