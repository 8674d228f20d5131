// The functions that build a graph. Each appends one node and checks the shapes of its operands
// (InternalError: a model's weights were validated when it was loaded). Shapes are outermost first;
// n = tokens, h = heads, d = head size, m = model width, e = experts, u = experts used per token,
// s = sequences. The op that a function appends is declared above it in its family's header.
#pragma once

#include "graph/graph.h"
#include "graph/ops/attention.h"
#include "graph/ops/elementwise.h"
#include "graph/ops/linear.h"
#include "graph/ops/norm.h"
#include "graph/ops/recurrence.h"
#include "graph/ops/rotary.h"
#include "graph/ops/routing.h"
#include "graph/ops/rows.h"
#include "graph/ops/sources.h"
