import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.Vector;
import redis.clients.jedis.Jedis;
import site.ycsb.ByteArrayByteIterator;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.Status;

/** YCSB's binding: a record is one value, its fields with their lengths before them. */
public class OrdnaClient extends DB {
  private Jedis server;

  @Override
  public void init() {
    int port = Integer.parseInt(getProperties().getProperty("ordna.port", "6380"));
    server = new Jedis(getProperties().getProperty("ordna.host", "127.0.0.1"), port);
  }

  @Override
  public void cleanup() {
    server.close();
  }

  private static byte[] name(String table, String key) {
    return (table + ":" + key).getBytes();
  }

  private static byte[] bound(String sign, String key) {
    return (sign + key).getBytes();
  }

  private static byte[] encode(Map<String, ByteIterator> fields) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    DataOutputStream out = new DataOutputStream(bytes);
    try {
      for (Map.Entry<String, ByteIterator> field : fields.entrySet()) {
        byte[] value = field.getValue().toArray();
        out.writeUTF(field.getKey());
        out.writeInt(value.length);
        out.write(value);
      }
    } catch (IOException impossible) {
      throw new IllegalStateException(impossible);
    }
    return bytes.toByteArray();
  }

  private static void decode(byte[] value, Set<String> wanted, Map<String, ByteIterator> fields) {
    DataInputStream in = new DataInputStream(new ByteArrayInputStream(value));
    try {
      while (in.available() > 0) {
        String field = in.readUTF();
        byte[] content = new byte[in.readInt()];
        in.readFully(content);
        if (wanted == null || wanted.contains(field)) {
          fields.put(field, new ByteArrayByteIterator(content));
        }
      }
    } catch (IOException torn) {
      throw new IllegalStateException(torn);
    }
  }

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    byte[] value = server.get(name(table, key));
    if (value == null) {
      return Status.NOT_FOUND;
    }
    decode(value, fields, result);
    return Status.OK;
  }

  @Override
  @SuppressWarnings("unchecked")
  public Status scan(
      String table, String start, int count, Set<String> fields,
      Vector<HashMap<String, ByteIterator>> result) {
    List<byte[]> entries = (List<byte[]>) server.sendCommand(
        () -> "ORDNA.RANGE".getBytes(), bound("[", table + ":" + start), bound("(", table + ";"),
        "LIMIT".getBytes(), Integer.toString(count).getBytes(), "WITHVALUES".getBytes());
    for (int at = 1; at < entries.size(); at += 2) {
      HashMap<String, ByteIterator> entry = new HashMap<>();
      decode(entries.get(at), fields, entry);
      result.add(entry);
    }
    return entries.isEmpty() ? Status.NOT_FOUND : Status.OK;
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> values) {
    return "OK".equals(server.set(name(table, key), encode(values))) ? Status.OK : Status.ERROR;
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> values) {
    Map<String, ByteIterator> all = new HashMap<>();
    byte[] before = server.get(name(table, key));
    if (before == null) {
      return Status.NOT_FOUND;
    }
    decode(before, null, all);
    all.putAll(values);
    return insert(table, key, all);
  }

  @Override
  public Status delete(String table, String key) {
    return server.del(name(table, key)) == 1 ? Status.OK : Status.NOT_FOUND;
  }
}
