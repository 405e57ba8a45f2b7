package godwit.peers;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.flink.api.common.serialization.AbstractDeserializationSchema;
import org.apache.flink.api.common.serialization.SerializationSchema;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;

/**
 * Rows from one Kafka topic and outputs into another, as text with tabs, as in the project's own real-time runs.
 *
 * <p>A row is key, payload, number and when it was due; an output is number, key, count and digest, with the key beside it so that
 * the outputs of a key stay in one partition.
 */
final class KafkaEnds {
  private KafkaEnds() {}

  static KafkaSource<Tuple2<Long, Long>> source(Map<String, String> options) {
    return KafkaSource.<Tuple2<Long, Long>>builder()
        .setBootstrapServers(options.get("bootstrap"))
        .setTopics(options.get("source"))
        .setStartingOffsets(OffsetsInitializer.earliest())
        .setValueOnlyDeserializer(new RowText())
        .build();
  }

  static KafkaSink<Tuple4<Long, Long, Long, Long>> sink(Map<String, String> options) {
    return KafkaSink.<Tuple4<Long, Long, Long, Long>>builder()
        .setBootstrapServers(options.get("bootstrap"))
        .setRecordSerializer(
            KafkaRecordSerializationSchema.<Tuple4<Long, Long, Long, Long>>builder()
                .setTopic(options.get("target"))
                .setKeySerializationSchema(new KeyText())
                .setValueSerializationSchema(new OutputText())
                .build())
        .setDeliveryGuarantee(DeliveryGuarantee.AT_LEAST_ONCE)
        .setProperty("linger.ms", "0") // as in our own runs; the client's default of 5 ms would be added to every row
        .build();
  }

  private static byte[] bytes(String text) {
    return text.getBytes(StandardCharsets.UTF_8);
  }

  /** (number, key) of a row. */
  private static final class RowText extends AbstractDeserializationSchema<Tuple2<Long, Long>> {
    RowText() {
      super(Counting.ROW);
    }

    @Override
    public Tuple2<Long, Long> deserialize(byte[] record) {
      String[] columns = new String(record, StandardCharsets.UTF_8).split("\t", 4);
      return Tuple2.of(Long.parseLong(columns[2]), Long.parseLong(columns[0]));
    }
  }

  private static final class KeyText implements SerializationSchema<Tuple4<Long, Long, Long, Long>> {
    @Override
    public byte[] serialize(Tuple4<Long, Long, Long, Long> output) {
      return bytes(Long.toString(output.f1));
    }
  }

  private static final class OutputText implements SerializationSchema<Tuple4<Long, Long, Long, Long>> {
    @Override
    public byte[] serialize(Tuple4<Long, Long, Long, Long> output) {
      return bytes(output.f0 + "\t" + output.f1 + "\t" + output.f2 + "\t" + output.f3);
    }
  }
}
