"""From documents to flat ids: shapes of records, sentences, engines, long texts."""
