#define GW_LEVEL v4
#include "level.inc"
