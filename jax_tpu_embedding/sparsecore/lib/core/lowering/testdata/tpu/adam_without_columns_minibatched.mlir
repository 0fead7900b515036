module @jit_bind attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 1 : i32} {
  func.func public @main(%arg0: tensor<2048xi32>, %arg1: tensor<256xi32>, %arg2: tensor<256xi32>, %arg3: tensor<256xf32>, %arg4: tensor<i32>, %arg5: tensor<64xf32>, %arg6: tensor<64xf32>, %arg7: tensor<64xf32>, %arg8: tensor<32xf32>, %arg9: tensor<f32>, %arg10: tensor<f32>, %arg11: tensor<f32>, %arg12: tensor<f32>) -> (tensor<64xf32> {jax.result_info = "result[0]"}, tensor<64xf32> {jax.result_info = "result[1]"}, tensor<64xf32> {jax.result_info = "result[2]"}) {
    %cst = stablehlo.constant dense<1.000000e+00> : tensor<f32>
    %0 = stablehlo.custom_call @SparseDenseMatmulGradOptimizerUpdateWithMinibatchingOp(%arg0, %arg1, %arg2, %arg3, %arg4, %arg5, %arg6, %arg7, %arg8, %arg9, %arg10, %arg11, %arg12, %cst) {backend_config = "{\22sparse_dense_matmul_config\22: {\22max_ids_per_partition\22: 16, \22max_unique_ids_per_partition\22: 8, \22pad_value\22: 2147483647, \22sharding_strategy\22: 1, \22num_slot_variables\22: 2, \22num_hyperparameters\22: 5}, \22device_type\22: \22DEVICE_TYPE_SPARSECORE\22}", called_computations = [@adam_optimizer_update]} : (tensor<2048xi32>, tensor<256xi32>, tensor<256xi32>, tensor<256xf32>, tensor<i32>, tensor<64xf32>, tensor<64xf32>, tensor<64xf32>, tensor<32xf32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>, tensor<f32>) -> tuple<tensor<64xf32>, tensor<64xf32>, tensor<64xf32>>
    %1 = stablehlo.get_tuple_element %0[0] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64xf32>, tensor<64xf32>, tensor<64xf32>>) -> tensor<64xf32>
    %2 = stablehlo.get_tuple_element %0[1] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64xf32>, tensor<64xf32>, tensor<64xf32>>) -> tensor<64xf32>
    %3 = stablehlo.get_tuple_element %0[2] {mhlo.frontend_attributes = {_xla_compute_type = "sparse"}} : (tuple<tensor<64xf32>, tensor<64xf32>, tensor<64xf32>>) -> tensor<64xf32>
    return %1, %2, %3 : tensor<64xf32>, tensor<64xf32>, tensor<64xf32>
  }
  func.func private @adam_optimizer_update(%arg0: tensor<1xf32>, %arg1: tensor<1xf32>, %arg2: tensor<1xf32>, %arg3: tensor<1xf32>, %arg4: tensor<1xf32>, %arg5: tensor<1xf32>, %arg6: tensor<1xf32>, %arg7: tensor<1xf32>, %arg8: tensor<1xf32>) -> tuple<tensor<1xf32>, tensor<1xf32>, tensor<1xf32>> {
    %0 = stablehlo.subtract %arg8, %arg5 : tensor<1xf32>
    %1 = stablehlo.subtract %arg0, %arg2 : tensor<1xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<1xf32>
    %3 = stablehlo.add %arg2, %2 : tensor<1xf32>
    %4 = stablehlo.subtract %arg8, %arg6 : tensor<1xf32>
    %5 = stablehlo.multiply %arg0, %arg0 : tensor<1xf32>
    %6 = stablehlo.subtract %5, %arg3 : tensor<1xf32>
    %7 = stablehlo.multiply %4, %6 : tensor<1xf32>
    %8 = stablehlo.add %arg3, %7 : tensor<1xf32>
    %9 = stablehlo.multiply %arg4, %3 : tensor<1xf32>
    %10 = stablehlo.sqrt %8 : tensor<1xf32>
    %11 = stablehlo.add %10, %arg7 : tensor<1xf32>
    %12 = stablehlo.divide %9, %11 : tensor<1xf32>
    %13 = stablehlo.subtract %arg1, %12 : tensor<1xf32>
    %14 = stablehlo.tuple %13, %3, %8 : tuple<tensor<1xf32>, tensor<1xf32>, tensor<1xf32>>
    return %14 : tuple<tensor<1xf32>, tensor<1xf32>, tensor<1xf32>>
  }
}
