#define GW_LEVEL v3
#include "level.inc"
