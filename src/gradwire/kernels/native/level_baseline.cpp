#define GW_LEVEL baseline
#include "level.inc"
