// The arguments of all kernels, for the functions of ops/ that fill them in.
#pragma once

#include "backend/cpu/kernels/attention/attend.h"
#include "backend/cpu/kernels/attention/cache_rows.h"
#include "backend/cpu/kernels/common/quantized_rows.h"
#include "backend/cpu/kernels/elementwise/elementwise.h"
#include "backend/cpu/kernels/norms/norms.h"
#include "backend/cpu/kernels/products/experts.h"
#include "backend/cpu/kernels/products/linear.h"
#include "backend/cpu/kernels/recurrence/states.h"
#include "backend/cpu/kernels/rows/rows.h"
