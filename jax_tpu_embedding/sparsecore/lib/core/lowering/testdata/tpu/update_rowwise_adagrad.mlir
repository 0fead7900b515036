module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<32xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<64x16xf32>, %arg6: tensor<64x1xf32>, %arg7: tensor<32x16xf32>, %arg8: tensor<f32>, %arg9: tensor<f32>) -> (tensor<64x16xf32> {jax.result_info = "result[0]"}, tensor<64x1xf32> {jax.result_info = "result[1]"}) {
    %0 = stablehlo.reshape %arg6 : (tensor<64x1xf32>) -> tensor<64xf32>
    %1 = stablehlo.custom_call @SparseDenseMatmulGradOpWithOptimizerUpdate(%arg0, %arg1, %arg2, %arg3, %arg7, %arg5, %0, %arg8, %arg9) {backend_config = "{\22sparse_dense_matmul_config\22: {\22max_ids_per_partition\22: 16, \22max_unique_ids_per_partition\22: 8, \22pad_value\22: 2147483647, \22sharding_strategy\22: 1, \22num_slot_variables\22: 1, \22num_hyperparameters\22: 2}, \22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}", called_computations = [@rowwise_adagrad_optimizer_update]} : (tensor<32xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<32x16xf32>, tensor<64x16xf32>, tensor<64xf32>, tensor<f32>, tensor<f32>) -> tuple<tensor<64x16xf32>, tensor<64xf32>>
    %2 = stablehlo.get_tuple_element %1[0] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64xf32>>) -> tensor<64x16xf32>
    %3 = stablehlo.get_tuple_element %1[1] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64x16xf32>, tensor<64xf32>>) -> tensor<64xf32>
    %4 = stablehlo.reshape %3 : (tensor<64xf32>) -> tensor<64x1xf32>
    return %2, %4 : tensor<64x16xf32>, tensor<64x1xf32>
  }
  func.func private @rowwise_adagrad_optimizer_update(%arg0: tensor<1x16xf32>, %arg1: tensor<1x16xf32>, %arg2: tensor<1xf32>, %arg3: tensor<1x16xf32>, %arg4: tensor<1x16xf32>) -> tuple<tensor<1x16xf32>, tensor<1xf32>> {
    %0 = stablehlo.reshape %arg2 : (tensor<1xf32>) -> tensor<1x1xf32>
    %1 = stablehlo.multiply %arg0, %arg0 : tensor<1x16xf32>
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %2 = stablehlo.reduce(%1 init: %cst) applies stablehlo.add across dimensions = [1] : (tensor<1x16xf32>, tensor<f32>) -> tensor<1xf32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [0] : (tensor<1xf32>) -> tensor<1x1xf32>
    %cst_0 = stablehlo.constant dense<1.200000e+01> : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %cst_0, dims = [] : (tensor<f32>) -> tensor<1x1xf32>
    %5 = stablehlo.divide %3, %4 : tensor<1x1xf32>
    %6 = stablehlo.add %0, %5 : tensor<1x1xf32>
    %7 = stablehlo.multiply %arg3, %arg0 : tensor<1x16xf32>
    %8 = stablehlo.sqrt %6 : tensor<1x1xf32>
    %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<1x1xf32>) -> tensor<1x16xf32>
    %10 = stablehlo.add %9, %arg4 : tensor<1x16xf32>
    %11 = stablehlo.divide %7, %10 : tensor<1x16xf32>
    %12 = stablehlo.subtract %arg1, %11 : tensor<1x16xf32>
    %13 = stablehlo.reshape %6 : (tensor<1x1xf32>) -> tensor<1xf32>
    %14 = stablehlo.tuple %12, %13 : tuple<tensor<1x16xf32>, tensor<1xf32>>
    return %14 : tuple<tensor<1x16xf32>, tensor<1xf32>>
  }
}
