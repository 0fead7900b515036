module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2048xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<64x16xf32>, %arg6: tensor<64x16xf32>, %arg7: tensor<64x16xf32>, %arg8: tensor<32x16xf32>, %arg9: tensor<f32>, %arg10: tensor<f32>, %arg11: tensor<f32>, %arg12: tensor<f32>, %arg13: tensor<f32>) -> (tensor<64x16xf32> {jax.result_info = "result[0]"}, tensor<64x16xf32> {jax.result_info = "result[1]"}, tensor<64x16xf32> {jax.result_info = "result[2]"}) {
    %0 = stablehlo.custom_call @SparseDenseMatmulGradOptimizerUpdateWithMinibatchingOp(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %arg13) {backend_config = "{\22sparse_dense_matmul_config\22: {\22max_ids_per_partition\22: 16, \22max_unique_ids_per_partition\22: 8, \22pad_value\22: 2147483647, \22sharding_strategy\22: 1, \22num_slot_variables\22: 2, \22num_hyperparameters\22: 5}, \22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}", called_computations = [@ftrl_optimizer_update]} : (tensor<2048xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<i32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<32x16xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>
    %1 = stablehlo.get_tuple_element %0[0] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    %2 = stablehlo.get_tuple_element %0[1] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    %3 = stablehlo.get_tuple_element %0[2] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    return %1, %2, %3 : tensor<64x16xf32>, tensor<64x16xf32>, tensor<64x16xf32>
  }
  func.func private @ftrl_optimizer_update(%arg0: tensor<1x16xf32>, %arg1: tensor<1x16xf32>, %arg2: tensor<1x16xf32>, %arg3: tensor<1x16xf32>, %arg4: tensor<1x16xf32>, %arg5: tensor<1x16xf32>, %arg6: tensor<1x16xf32>, %arg7: tensor<1x16xf32>, %arg8: tensor<1x16xf32>) -> tuple<tensor<1x16xf32>, tensor<1x16xf32>, tensor<1x16xf32>> {
    %0 = stablehlo.negate %arg5 : tensor<1x16xf32>
    %1 = stablehlo.power %arg2, %0 : tensor<1x16xf32>
    %2 = stablehlo.multiply %arg0, %arg0 : tensor<1x16xf32>
    %3 = stablehlo.add %arg2, %2 : tensor<1x16xf32>
    %4 = stablehlo.negate %arg5 : tensor<1x16xf32>
    %5 = stablehlo.power %3, %4 : tensor<1x16xf32>
    %6 = stablehlo.subtract %5, %1 : tensor<1x16xf32>
    %7 = stablehlo.multiply %arg4, %arg0 : tensor<1x16xf32>
    %8 = stablehlo.add %arg3, %7 : tensor<1x16xf32>
    %9 = stablehlo.multiply %6, %arg1 : tensor<1x16xf32>
    %10 = stablehlo.subtract %8, %9 : tensor<1x16xf32>
    %11 = stablehlo.multiply %arg6, %arg4 : tensor<1x16xf32>
    %12 = stablehlo.multiply %arg4, %arg7 : tensor<1x16xf32>
    %cst = stablehlo.constant dense<2.000000e+00> : tensor<f32>
    %13 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %14 = stablehlo.multiply %13, %12 : tensor<1x16xf32>
    %15 = stablehlo.add %5, %14 : tensor<1x16xf32>
    %16 = stablehlo.add %15, %arg8 : tensor<1x16xf32>
    %17 = stablehlo.negate %11 : tensor<1x16xf32>
    %18 = stablehlo.clamp %17, %10, %11 : tensor<1x16xf32>
    %19 = stablehlo.subtract %18, %10 : tensor<1x16xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %20 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %21 = stablehlo.compare EQ, %arg6, %20, FLOAT : (tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xi1>
    %22 = stablehlo.negate %10 : tensor<1x16xf32>
    %23 = call @_where(%21, %22, %19) : (tensor<1x16xi1>, tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xf32>
    %24 = stablehlo.divide %23, %16 : tensor<1x16xf32>
    %25 = stablehlo.tuple %24, %3, %10 : tuple<tensor<1x16xf32>, tensor<1x16xf32>, tensor<1x16xf32>>
    return %25 : tuple<tensor<1x16xf32>, tensor<1x16xf32>, tensor<1x16xf32>>
  }
  func.func private @_where(%arg0: tensor<1x16xi1>, %arg1: tensor<1x16xf32>, %arg2: tensor<1x16xf32>) -> tensor<1x16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<1x16xi1>, tensor<1x16xf32>
    return %0 : tensor<1x16xf32>
  }
}
