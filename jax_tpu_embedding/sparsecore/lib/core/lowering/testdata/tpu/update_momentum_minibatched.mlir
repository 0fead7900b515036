module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2048xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<64x16xf32>, %arg6: tensor<64x16xf32>, %arg7: tensor<32x16xf32>, %arg8: tensor<f32>, %arg9: tensor<f32>, %arg10: tensor<i1>) -> (tensor<64x16xf32> {jax.result_info = "result[0]"}, tensor<64x16xf32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.convert %arg10 : (tensor<i1>) -> tensor<f32>
    %1 = stablehlo.custom_call @SparseDenseMatmulGradOptimizerUpdateWithMinibatchingOp(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8, %arg9, %0) {backend_config = "{\22sparse_dense_matmul_config\22: {\22max_ids_per_partition\22: 16, \22max_unique_ids_per_partition\22: 8, \22pad_value\22: 2147483647, \22sharding_strategy\22: 1, \22num_slot_variables\22: 1, \22num_hyperparameters\22: 3}, \22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}", called_computations = [@momentum_optimizer_update]} : (tensor<2048xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<i32>, tensor<64x16xf32>, tensor<64x16xf32>, tensor<32x16xf32>, tensor<f32>, tensor<f32>, tensor<f32>) -> tuple<tensor<64x16xf32>, tensor<64x16xf32>>
    %2 = stablehlo.get_tuple_element %1[0] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    %3 = stablehlo.get_tuple_element %1[1] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64x16xf32>>) -> tensor<64x16xf32>
    return %2, %3 : tensor<64x16xf32>, tensor<64x16xf32>
  }
  func.func private @momentum_optimizer_update(%arg0: tensor<1x16xf32>, %arg1: tensor<1x16xf32>, %arg2: tensor<1x16xf32>, %arg3: tensor<1x16xf32>, %arg4: tensor<1x16xf32>, %arg5: tensor<1x16xf32>) -> tuple<tensor<1x16xf32>, tensor<1x16xf32>> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<1x16xf32>
    %1 = stablehlo.compare NE, %arg5, %0, FLOAT : (tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xi1>
    %2 = stablehlo.multiply %arg4, %arg2 : tensor<1x16xf32>
    %3 = stablehlo.add %2, %arg0 : tensor<1x16xf32>
    %4 = stablehlo.multiply %arg4, %3 : tensor<1x16xf32>
    %5 = stablehlo.add %arg0, %4 : tensor<1x16xf32>
    %6 = call @_where(%1, %5, %3) : (tensor<1x16xi1>, tensor<1x16xf32>, tensor<1x16xf32>) -> tensor<1x16xf32>
    %7 = stablehlo.multiply %arg3, %6 : tensor<1x16xf32>
    %8 = stablehlo.subtract %arg1, %7 : tensor<1x16xf32>
    %9 = stablehlo.tuple %8, %3 : tuple<tensor<1x16xf32>, tensor<1x16xf32>>
    return %9 : tuple<tensor<1x16xf32>, tensor<1x16xf32>>
  }
  func.func private @_where(%arg0: tensor<1x16xi1>, %arg1: tensor<1x16xf32>, %arg2: tensor<1x16xf32>) -> tensor<1x16xf32> {
    %0 = stablehlo.select %arg0, %arg1, %arg2 : tensor<1x16xi1>, tensor<1x16xf32>
    return %0 : tensor<1x16xf32>
  }
}
