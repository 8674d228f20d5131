#version 450
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_NV_cooperative_matrix : require
// Defines the matrix types and operations of lib/product_matrices.glsl with
// VK_NV_cooperative_matrix.

#define X_MATRIX fcoopmatNV<16, gl_ScopeSubgroup, M, K>
#define W_MATRIX fcoopmatNV<16, gl_ScopeSubgroup, K, N>
#define SUM_MATRIX fcoopmatNV<32, gl_ScopeSubgroup, M, N>
#define LOAD_ROWS(matrix, from, at, stride) coopMatLoadNV(matrix, from, at, stride, false)
#define LOAD_COLUMNS(matrix, from, at, stride) coopMatLoadNV(matrix, from, at, stride, true)
#define STORE_ROWS(matrix, to, at, stride) coopMatStoreNV(matrix, to, at, stride, false)
#define MULTIPLY_ADD(a, b, c) coopMatMulAddNV(a, b, c)

#include "lib/product_matrices.glsl"
